//! The only module with raw pointers to the caller's memory.
//!
//! A [`Tensor`] borrows one or two of the caller's slices for `'a`. Inside the library the borrow becomes a
//! [`RawTensor`], whose pointers are only turned into [`Lent`] memory, each time behind a fresh [`Gate`]. Code that
//! makes a `RawTensor` outlive its `Tensor` has to keep the promise that the borrow made: before `'a` ends the gate of
//! every attempt is closed and drained. The two places that do so are the blocking calls, which do not return before,
//! and the scope of asynchronous operations, which does not end before.

mod backup;
mod content;
mod on_device;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
mod span;
mod staged;

pub(crate) use backup::Backup;
pub(crate) use content::{LentContent, Piece, RawState, device_error, digests_on_devices};
pub(crate) use on_device::{LentDevice, OnDevice, Role};
pub(crate) use pipeline::{Hearer, Pipeline};
pub(crate) use span::Span;
pub use span::{Source, Target};
pub use staged::Staged;

use pccl_cuda::DeviceMemory;
use pccl_protocol::PartDescriptor;
use pccl_quant::{DataType, Element, ReduceOp, copy_streaming, first_non_finite, quantise::Quantisation};
use std::{marker::PhantomData, ops::Range, sync::Arc};
use tinysockets::link::{Gate, Lent, Origin};

/// One tensor of a collective: the caller's memory and what is to be done with it.
#[derive(Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: RawTensor,
    pub(crate) descriptor: PartDescriptor,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> Tensor<'a> {
    /// A tensor that is reduced in place. After a failed call it is bit-identical to before.
    pub fn in_place<T: Element>(data: &'a mut [T], op: ReduceOp) -> Self {
        let (start, bytes) = (data.as_mut_ptr().cast::<u8>(), size_of_val(data));
        Self {
            raw: RawTensor::new(start, start, bytes),
            descriptor: PartDescriptor::new(data.len() as u64, T::DATA_TYPE, op),
            lent: PhantomData,
        }
    }

    /// A tensor that is reduced from `send` into `recv`. After a failed call `send` is bit-identical to before and the
    /// content of `recv` is undefined.
    ///
    /// # Errors
    /// `InvalidArgument` if the two have different lengths.
    pub fn out_of_place<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        op: ReduceOp,
    ) -> Result<Self, crate::Error> {
        if send.len() != recv.len() {
            return Err(crate::Error::InvalidArgument(format!(
                "send buffer has {} elements, receive buffer {}",
                send.len(),
                recv.len()
            )));
        }
        Ok(Self {
            raw: RawTensor::new(send.as_ptr().cast(), recv.as_mut_ptr().cast(), size_of_val(send)),
            descriptor: PartDescriptor::new(send.len() as u64, T::DATA_TYPE, op),
            lent: PhantomData,
        })
    }

    /// The same tensor, quantised while it travels: sums and averages of floats, the same way on all peers. The call
    /// that the tensor is given to refuses what does not fit (`InvalidArgument`).
    #[must_use]
    pub fn quantised(mut self, quantisation: impl Into<Quantisation>) -> Self {
        self.descriptor.quantisation = Some(quantisation.into());
        self
    }

    /// As [`Tensor::quantised`] if there is a quantisation, otherwise unchanged.
    pub(crate) fn with(mut self, quantisation: Option<Quantisation>) -> Self {
        self.descriptor.quantisation = quantisation;
        self
    }

    /// A tensor of a type that is known at run time only, at any address. In place if `send` and `recv` are the same.
    ///
    /// # Safety
    /// For as long as `'a`, `count` elements at `recv` are valid for reads and writes and nobody else uses them, and as
    /// many at `send` are valid for reads and nobody writes them (unless both are the same). Both are at most
    /// `isize::MAX` bytes and, even without elements, not null.
    pub unsafe fn from_raw(
        send: *const u8,
        recv: *mut u8,
        count: usize,
        data_type: DataType,
        op: ReduceOp,
    ) -> Self {
        let bytes = count.saturating_mul(data_type.size_bytes());
        Self {
            raw: RawTensor::new(send, recv, bytes),
            descriptor: PartDescriptor { count: count as u64, data_type, op, quantisation: None },
            lent: PhantomData,
        }
    }

    /// Some of its elements, with an operation of their own. The caller takes care that no two of them that are in use
    /// at the same time have an element in common.
    pub(crate) fn part(&self, elements: Range<usize>) -> Self {
        let size = self.descriptor.data_type.size_bytes();
        let raw = self.raw.part(elements.start * size..elements.end * size);
        let descriptor = PartDescriptor { count: elements.len() as u64, ..self.descriptor };
        Self { raw, descriptor, lent: PhantomData }
    }

    /// The same tensor for a shorter time, so that a call may be tried again with it.
    pub(crate) fn reborrow(&mut self) -> Tensor<'_> {
        Tensor { raw: self.raw.clone(), descriptor: self.descriptor, lent: PhantomData }
    }
}

/// Whether a tensor can be quantised as it is to be.
pub(crate) fn check_part(part: &PartDescriptor) -> Result<(), crate::Error> {
    let PartDescriptor { count, data_type, op, quantisation } = *part;
    let Some(quantisation) = quantisation else { return Ok(()) };
    let codec =
        quantisation.codec(data_type, op).map_err(|e| crate::Error::InvalidArgument(e.to_string()))?;
    let encoded = usize::try_from(count).ok().and_then(|count| codec.encoded_len(count));
    encoded.map(drop).ok_or_else(|| {
        crate::Error::InvalidArgument(format!("{count} elements are too many to be quantised"))
    })
}

/// Pointers to a tensor of the caller. See the module's documentation for who keeps them valid.
#[derive(Debug, Clone)]
pub(crate) struct RawTensor {
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
    in_place: bool,
    /// In place only: what is overwritten comes back after a failure.
    is_saved: bool,
    /// In place only: nothing is written.
    is_read_only: bool,
    /// If it is on a device: then the pointers are addresses there, and nobody follows them.
    device: Option<OnDevice>,
    /// If it stands for a tensor on a device: where the contribution comes from, and where the result goes.
    stands_for: Option<Origins>,
    /// If it is a piece of the tensor of a collective: its first byte there.
    starts_at: usize,
}

// SAFETY: the pointers are only used through `Lent`, which synchronises all access by its gate, and the memory behind
// them is plain numbers (`Element`), which any thread may read and write.
unsafe impl Send for RawTensor {}
// SAFETY: as above; a shared `RawTensor` offers nothing but the making of `Lent` memory.
unsafe impl Sync for RawTensor {}

/// Where the contribution of a tensor comes from that is elsewhere, and where its result goes.
#[derive(Debug, Clone)]
pub(crate) struct Origins {
    pub(crate) contribution: Arc<dyn Origin>,
    pub(crate) result: Arc<dyn Origin>,
}

/// The memory of one tensor as one attempt of a collective uses it.
#[derive(Debug)]
pub(crate) enum PartMemory {
    /// Reduced in place; what is overwritten is saved in the backup first.
    InPlace {
        /// The caller's tensor.
        data: Lent,
        /// As long as the tensor, or empty if nothing of it is ever saved.
        backup: Lent,
    },
    /// Reduced from one buffer into another.
    OutOfPlace {
        /// Read only.
        send: Lent,
        /// The result.
        recv: Lent,
    },
    /// Quantised, and on a device.
    OnDevice(LentDevice),
}

impl PartMemory {
    /// The contribution of this rank.
    pub(crate) fn own(&self) -> &Lent {
        match self {
            Self::InPlace { data, .. } => data,
            Self::OutOfPlace { send, .. } => send,
            Self::OnDevice(device) => device.on_host(),
        }
    }

    /// Where the caller wants the result.
    pub(crate) fn result(&self) -> &Lent {
        match self {
            Self::InPlace { data, .. } => data,
            Self::OutOfPlace { recv, .. } => recv,
            Self::OnDevice(device) => device.on_host(),
        }
    }
}

impl RawTensor {
    fn new(send: *const u8, recv: *mut u8, bytes: usize) -> Self {
        let in_place = std::ptr::eq(send, recv);
        Self {
            send,
            recv,
            bytes,
            in_place,
            is_saved: in_place,
            is_read_only: false,
            device: None,
            stands_for: None,
            starts_at: 0,
        }
    }

    /// A tensor on a device. Before the outcome nothing is written there but a receive buffer, so nothing is saved.
    pub(crate) fn on_device(device: OnDevice) -> Self {
        let address = |memory: &DeviceMemory| memory.range().start as usize as *mut u8;
        let (send, recv) = device.memories();
        let raw = Self::new(address(send), address(recv), device.bytes());
        Self { is_saved: false, device: Some(device), ..raw }
    }

    /// Where it is, if that is on a device.
    pub(crate) fn device(&self) -> Option<&OnDevice> {
        self.device.as_ref()
    }

    /// Memory of the caller in place, of which a collective makes this use.
    pub(super) fn in_place(start: *mut u8, bytes: usize, role: Role) -> Self {
        let raw = Self::new(start, start, bytes);
        match role {
            // Nothing is folded into it, and it may be left with anything in it when the collective fails.
            Role::Gives | Role::Gets => raw.without_backup(),
            Role::Folds | Role::Scatters | Role::Exchanges | Role::Replaces => raw,
        }
    }

    /// The same memory, in place, for a collective that folds nothing into it and may leave anything there when it
    /// fails: it needs no backup.
    pub(crate) fn without_backup(mut self) -> Self {
        assert!(self.in_place, "what is only read is not saved in any case");
        self.is_saved = false;
        self
    }

    /// The same memory, which is not written.
    fn read_only(self) -> Self {
        Self { is_read_only: true, ..self.without_backup() }
    }

    /// From one part of the library's memory into another part of it, as long; the operation keeps `room`.
    pub(crate) fn within(room: &Backup, send: Range<usize>, recv: Range<usize>) -> Self {
        let bytes = room.checked(&send);
        assert!(bytes == room.checked(&recv) && (send.end <= recv.start || recv.end <= send.start));
        // SAFETY: both ranges lie inside the allocation, which was just checked.
        let (send, recv) = unsafe { (room.start.add(send.start), room.start.add(recv.start)) };
        Self::new(send, recv, bytes)
    }

    /// A part of the library's memory in place, of which nothing is saved; the operation keeps `room`.
    pub(crate) fn part_of(room: &Backup, bytes: Range<usize>) -> Self {
        let length = room.checked(&bytes);
        // SAFETY: the range lies inside the allocation, which was just checked.
        let start = unsafe { room.start.add(bytes.start) };
        Self::new(start, start, length).without_backup()
    }

    /// The same, in the place of a tensor on a device.
    fn standing_for(self, origins: Origins) -> Self {
        let is_kept = !self.is_saved || !self.in_place || self.bytes == 0;
        assert!(is_kept, "what comes down stays what it is");
        Self { stands_for: Some(origins), ..self }
    }

    /// From the caller's memory into that of the library, from its beginning on; the operation keeps `room`.
    fn from_into(send: *const u8, bytes: usize, room: &Backup) -> Self {
        let bytes = room.checked(&(0..bytes));
        Self::new(send, room.start, bytes)
    }

    /// The same memory as a piece of the tensor of a collective, that begins with this byte of it.
    pub(crate) fn at(self, byte: usize) -> Self {
        Self { starts_at: byte, ..self }
    }

    /// Its first byte in the tensor of a collective that it is a piece of.
    pub(crate) fn starts_at(&self) -> usize {
        self.starts_at
    }

    /// Some of its bytes.
    pub(crate) fn part(&self, bytes: Range<usize>) -> Self {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "a part lies within the tensor");
        let (send, recv) = (self.send.wrapping_add(bytes.start), self.recv.wrapping_add(bytes.start));
        let device = self.device.as_ref().map(|device| device.part(bytes.clone()));
        Self { send, recv, bytes: bytes.len(), device, ..self.clone() }
    }

    /// Copies `from` to the byte `at`. Only while nothing of the tensor is lent to threads that use it: before the
    /// vote.
    pub(crate) fn put(&self, at: usize, from: &[u8]) {
        assert!(self.device.is_none() && at <= self.bytes && from.len() <= self.bytes - at);
        // SAFETY: the place was just checked, the caller's exclusive borrow covers it, `from` is another borrow, and
        // nobody sends anything before this peer has voted.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.recv.add(at), from.len()) };
    }

    /// Reads some bytes of the result. Only after the gate of the attempt has drained.
    pub(crate) fn view_result<R>(&self, bytes: Range<usize>, work: impl FnOnce(&[u8]) -> R) -> R {
        assert!(self.device.is_none() && bytes.start <= bytes.end && bytes.end <= self.bytes);
        // SAFETY: the range was just checked; the owner of the memory has lent it until the operation is over, and no
        // other thread uses it any more.
        work(unsafe { std::slice::from_raw_parts(self.recv.add(bytes.start), bytes.len()) })
    }

    /// The first element of what this peer contributes that is not finite. Before the operation begins.
    pub(crate) fn first_non_finite(&self, data_type: DataType) -> Result<Option<usize>, crate::Error> {
        if let Some(device) = &self.device {
            return device.first_non_finite(data_type);
        }
        if let Some(origins) = &self.stands_for
            && !origins.contribution.arrived(&(0..self.bytes))
        {
            // The thread that brings it says so when this peer has voted.
            return Ok(None);
        }
        // SAFETY: the borrow of the owner of these bytes covers them until the operation is over, and as it has not
        // begun, nobody writes them.
        let bytes = unsafe { std::slice::from_raw_parts(self.send, self.bytes) };
        Ok(first_non_finite(data_type, bytes))
    }

    /// Whether what is overwritten has to come back after a failure.
    pub(crate) fn is_saved(&self) -> bool {
        self.is_saved
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address ranges, and whether they are written.
    pub(crate) fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        if let Some(device) = &self.device {
            return device.ranges().collect();
        }
        let range = |start: usize| start..start + self.bytes;
        let read = (!self.in_place).then(|| (range(self.send as usize), false));
        std::iter::once((range(self.recv as usize), !self.is_read_only)).chain(read).collect()
    }

    /// Lends the tensor behind `gate`. An in-place tensor takes its backup from `saved` in `backup`.
    pub(crate) fn lend(&self, gate: &Arc<Gate>, backup: &Backup, saved: Range<usize>) -> PartMemory {
        if let Some(device) = &self.device {
            PartMemory::OnDevice(device.lend(backup.lend(0..0, gate)))
        } else if self.is_read_only {
            // SAFETY: the caller's shared borrow covers `bytes` bytes at `send` until the gate has drained.
            let data = unsafe { Lent::read_only(self.send, self.bytes, gate.clone()) };
            let data = self.comes_from(data, |origins| &origins.contribution);
            PartMemory::InPlace { data, backup: backup.lend(saved, gate) }
        } else if self.in_place {
            // SAFETY: the caller's borrow covers `bytes` bytes at `recv`, exclusively, until the gate has drained
            // (module documentation).
            let data = unsafe { Lent::new(self.recv, self.bytes, true, gate.clone()) };
            let data = self.comes_from(data, |origins| &origins.result);
            PartMemory::InPlace { data, backup: backup.lend(saved, gate) }
        } else {
            // SAFETY: the caller's shared borrow covers `bytes` bytes at `send` until the gate has drained.
            let send = unsafe { Lent::read_only(self.send, self.bytes, gate.clone()) };
            // SAFETY: the caller's exclusive borrow covers `bytes` bytes at `recv` until the gate has drained.
            let recv = unsafe { Lent::new(self.recv, self.bytes, true, gate.clone()) };
            PartMemory::OutOfPlace {
                send: self.comes_from(send, |origins| &origins.contribution),
                recv: self.comes_from(recv, |origins| &origins.result),
            }
        }
    }

    /// Lent memory of this tensor with one of its origins, if it has some.
    fn comes_from(&self, lent: Lent, which: impl Fn(&Origins) -> &Arc<dyn Origin>) -> Lent {
        match &self.stands_for {
            Some(origins) => lent.standing_for(which(origins).clone()),
            None => lent,
        }
    }

    /// Copies saved bytes back into an in-place tensor. Only after the gate of the attempt has drained: the caller's
    /// thread is then the only user of tensor and backup.
    pub(crate) fn restore(&self, range: Range<usize>, backup: &Backup, backup_offset: usize) {
        assert!(self.is_saved && range.start <= range.end && range.end <= self.bytes);
        let from = backup_offset + range.start;
        assert!(from + range.len() <= backup.capacity());
        // SAFETY: both ranges were just checked; the two allocations are different, and the drained gate leaves this
        // thread as the only user. The saved bytes are initialised, and so is the caller's tensor.
        let (target, saved) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.recv.add(range.start), range.len()),
                std::slice::from_raw_parts(backup.start.add(from), range.len()),
            )
        };
        copy_streaming(target, saved);
    }
}

/// The content of a tensor of the shared state.
#[derive(Debug)]
pub struct StateMemory<'a> {
    pub(crate) raw: RawState,
    pub(crate) data_type: DataType,
    pub(crate) count: usize,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> StateMemory<'a> {
    /// Borrows `data`.
    pub fn new<T: Element>(data: &'a mut [T]) -> Self {
        let raw = RawState::Host(HostState { start: data.as_mut_ptr().cast(), bytes: size_of_val(data) });
        Self { raw, data_type: T::DATA_TYPE, count: data.len(), lent: PhantomData }
    }

    /// Content of a type that is known at run time only, at any address.
    ///
    /// # Safety
    /// For as long as `'a`, `count` elements at `start` are valid for reads and writes and nobody else uses them. They
    /// are at most `isize::MAX` bytes and, even if there are none, `start` is not null.
    pub unsafe fn from_raw(start: *mut u8, count: usize, data_type: DataType) -> Self {
        let raw = HostState { start, bytes: count.saturating_mul(data_type.size_bytes()) };
        Self { raw: RawState::Host(raw), data_type, count, lent: PhantomData }
    }

    /// Content that lies on a device. It is hashed there; what others fetch of it, or what is fetched, goes through
    /// pinned memory piece by piece. [`SharedState::view`](crate::SharedState::view) does not show it.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not whole elements.
    pub fn on_device(memory: DeviceMemory, data_type: DataType) -> Result<Self, crate::Error> {
        let count = on_device::whole_elements(&memory, data_type)?;
        Ok(Self { raw: RawState::Device(memory), data_type, count, lent: PhantomData })
    }
}

/// A tensor of the shared state on the host: the caller's memory, borrowed for as long as the state lives.
#[derive(Debug)]
pub(crate) struct HostState {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is only used by the thread that owns the state, or through `Lent` behind a gate that the sync or
// the loan drains.
unsafe impl Send for HostState {}

impl HostState {
    /// The content. Only while nothing of it is lent for writing.
    pub(crate) fn view(&self) -> &[u8] {
        // SAFETY: the exclusive borrow that made `self` covers these bytes; every `Lent` made of it only reads.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The content as elements of the type that it was made of; `None` if such elements cannot lie at its address.
    pub(crate) fn elements<T: Element>(&self) -> Option<&[T]> {
        if !self.start.cast::<T>().is_aligned() {
            return None;
        }
        // SAFETY: as in `view`; the address is aligned, this number of whole elements lies there, and elements are
        // plain numbers, of which every bit pattern is one.
        Some(unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<T>()) })
    }

    /// Lends the content for reading behind `gate`.
    pub(crate) fn lend(&self, gate: &Arc<Gate>) -> Lent {
        // SAFETY: the borrow that made `self` covers these bytes; the sync, or the loan, drains the gate before it
        // writes to them or returns to the owner of the borrow.
        unsafe { Lent::read_only(self.start, self.bytes, gate.clone()) }
    }

    /// The content, to be changed. Only while nothing of it is lent: the code that lent it has drained the gate.
    pub(crate) fn view_mut(&mut self) -> &mut [u8] {
        // SAFETY: `self` stands for the exclusive borrow of these bytes, and is itself borrowed exclusively; every gate
        // behind which they were lent has drained.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}
