//! Reading and writing what the pointers of a caller point to. With the functions of the interface the only place that
//! trusts the caller: non-null pointers have to point to what the header says.

use crate::failure::{Failure, Outcome};
use std::{
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
};

/// The value that a pointer points to.
///
/// # Safety
/// If it is not null, it points to a `T`.
pub(crate) unsafe fn read<T: Copy>(pointer: *const T, name: &str) -> Outcome<T> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: by the contract of this function; C may have placed it at any address.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Checks a pointer for a result before the work begins.
pub(crate) fn check<T>(pointer: *const T, name: &str) -> Outcome {
    if pointer.is_null() { Err(Failure::argument(format!("{name} is NULL"))) } else { Ok(()) }
}

/// Writes a result; a null pointer means that nobody wants it.
///
/// # Safety
/// If it is not null, there is room for a `T`.
pub(crate) unsafe fn write<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: by the contract of this function.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// The items of an array.
///
/// # Safety
/// If it is not null, it points to `count` of them.
pub(crate) unsafe fn items<T: Copy>(pointer: *const T, count: usize, name: &str) -> Outcome<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check(pointer, name)?;
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("{name} has {count} items")));
    }
    // SAFETY: by the contract of this function; each address lies within the array.
    Ok((0..count).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

/// A text that ends with a zero.
///
/// # Safety
/// If it is not null, it points to one.
pub(crate) unsafe fn text(pointer: *const c_char, name: &str) -> Outcome<String> {
    check(pointer, name)?;
    // SAFETY: by the contract of this function.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(str::to_owned).map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// Writes a text, cut to the capacity, and its whole length.
///
/// # Safety
/// If `buffer` is not null, there is room for `capacity` bytes; if `length` is not null, for its value.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Outcome {
    if capacity > 0 {
        check(buffer, "buffer")?;
        let cut = text.len().min(capacity - 1);
        // SAFETY: `cut` bytes and a zero are at most `capacity` bytes; a text of ours lies elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), cut);
            buffer.add(cut).write(0);
        }
    }
    // SAFETY: by the contract of this function.
    unsafe { write(length, text.len()) };
    Ok(())
}

/// The address of `count` elements of a caller: null only for none of them.
pub(crate) fn buffer(pointer: *const c_void, count: usize, name: &str) -> Outcome<*mut u8> {
    match (pointer.is_null(), count) {
        (true, 0) => Ok(NonNull::dangling().as_ptr()),
        (true, _) => Err(Failure::argument(format!("{name} is NULL"))),
        (false, _) => Ok(pointer.cast::<u8>().cast_mut()),
    }
}

/// Numbers of a caller, for reading.
///
/// # Safety
/// If it is not null, it points to `count` of them, which nobody writes while the result is used.
pub(crate) unsafe fn slice<'a>(pointer: *const f32, count: usize, name: &str) -> Outcome<&'a [f32]> {
    check_floats(pointer, count, name)?;
    // SAFETY: by the contract of this function; it is aligned, and not too long.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer, count) } })
}

/// Numbers of a caller, for reading and writing.
///
/// # Safety
/// If it is not null, it points to `count` of them, which nobody else uses while the result is used.
pub(crate) unsafe fn slice_mut<'a>(pointer: *mut f32, count: usize, name: &str) -> Outcome<&'a mut [f32]> {
    check_floats(pointer, count, name)?;
    // SAFETY: by the contract of this function; it is aligned, and not too long.
    Ok(if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(pointer, count) } })
}

fn check_floats(pointer: *const f32, count: usize, name: &str) -> Outcome {
    if count > 0 {
        check(pointer, name)?;
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{name} is not where floats may lie")));
    }
    if count > isize::MAX as usize / size_of::<f32>() {
        return Err(Failure::argument(format!("{name} has {count} items")));
    }
    Ok(())
}

/// Writes numbers, and how many there are.
///
/// # Safety
/// There is room for them, and for the count.
pub(crate) unsafe fn write_items(all: &[u64], items: *mut u64, count_out: *mut u64) {
    for (index, item) in all.iter().enumerate() {
        // SAFETY: by the contract of this function.
        unsafe { write(items.add(index), *item) };
    }
    // SAFETY: the same.
    unsafe { write(count_out, all.len() as u64) };
}

/// Writes as many peers as there is room for, and how many there are.
///
/// # Safety
/// If they are not null, there is room for `capacity` peers, and for the number.
pub(crate) unsafe fn write_peers(
    all: impl ExactSizeIterator<Item = [u8; 16]>,
    peers: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> Outcome {
    check(count_out, "count_out")?;
    if capacity > 0 {
        check(peers, "the array of peers")?;
    }
    // SAFETY: by the contract of this function.
    unsafe { write(count_out, all.len()) };
    for (index, peer) in all.enumerate().take(capacity) {
        // SAFETY: the same; `index` is below the capacity.
        unsafe { write(peers.add(index), peer) };
    }
    Ok(())
}
