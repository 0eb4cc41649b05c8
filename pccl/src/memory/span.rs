//! Elements that a collective reads or writes, on the host or on a device.
//!
//! Memory that links work on becomes a [`RawTensor`]. Memory that only the operation's own thread touches is a
//! [`Span`].

use super::{
    RawTensor,
    backup::Backup,
    on_device::{OnDevice, Role, refused, unwritten, whole_elements},
};
use crate::Error;
use pccl_cuda::DeviceMemory;
use pccl_quant::{DataType, Element};
use std::{borrow::Cow, marker::PhantomData, ops::Range};

/// Bytes that are copied from or to a device at once. A multiple of every element size.
const PIECE_BYTES: usize = 8 << 20;

/// Elements that a collective reads. Made of a slice of numbers.
#[derive(Debug)]
pub struct Source<'a> {
    span: Span,
    count: usize,
    data_type: DataType,
    lent: PhantomData<&'a [u8]>,
}

impl<'a, T: Element> From<&'a [T]> for Source<'a> {
    fn from(data: &'a [T]) -> Self {
        let span = Span::on_host(data.as_ptr().cast_mut().cast(), size_of_val(data));
        Self { span, count: data.len(), data_type: T::DATA_TYPE, lent: PhantomData }
    }
}

impl Source<'_> {
    /// Elements of a type that is known at run time only, at any address.
    ///
    /// # Safety
    /// For as long as `'a`, `count` elements at `start` are valid for reads and nobody writes them. They are at most
    /// `isize::MAX` bytes and, even if there are none, `start` is not null.
    pub unsafe fn from_raw(start: *const u8, count: usize, data_type: DataType) -> Self {
        let span = Span::on_host(start.cast_mut(), count.saturating_mul(data_type.size_bytes()));
        Self { span, count, data_type, lent: PhantomData }
    }

    /// Elements on a device. The call that they are given to begins after what is queued then on the stream that came
    /// with the memory.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not whole elements.
    pub fn on_device(memory: DeviceMemory, data_type: DataType) -> Result<Self, Error> {
        let count = whole_elements(&memory, data_type)?;
        Ok(Self { span: Span::on_device(memory), count, data_type, lent: PhantomData })
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Their type.
    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The memory, for an operation that keeps the promise of the borrow.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// As a tensor of a collective in which this rank only gives it.
    pub(crate) fn given(&self) -> RawTensor {
        self.span.given()
    }
}

/// Elements that a collective writes. Made of a mutable slice of numbers.
#[derive(Debug)]
pub struct Target<'a> {
    span: Span,
    count: usize,
    data_type: DataType,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a, T: Element> From<&'a mut [T]> for Target<'a> {
    fn from(data: &'a mut [T]) -> Self {
        let span = Span::on_host(data.as_mut_ptr().cast(), size_of_val(data));
        Self { span, count: data.len(), data_type: T::DATA_TYPE, lent: PhantomData }
    }
}

impl Target<'_> {
    /// Elements of a type that is known at run time only, at any address.
    ///
    /// # Safety
    /// For as long as `'a`, `count` elements at `start` are valid for reads and writes and nobody else uses them.
    /// They are at most `isize::MAX` bytes and, even if there are none, `start` is not null.
    pub unsafe fn from_raw(start: *mut u8, count: usize, data_type: DataType) -> Self {
        let span = Span::on_host(start, count.saturating_mul(data_type.size_bytes()));
        Self { span, count, data_type, lent: PhantomData }
    }

    /// Elements on a device. The call that they are given to begins after what is queued then on the stream that came
    /// with the memory; when it returns, what it has written is there.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not whole elements.
    pub fn on_device(memory: DeviceMemory, data_type: DataType) -> Result<Self, Error> {
        let count = whole_elements(&memory, data_type)?;
        Ok(Self { span: Span::on_device(memory), count, data_type, lent: PhantomData })
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Their type.
    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The memory, for an operation that keeps the promise of the borrow.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }
}

/// Caller's memory that no other thread than the operation's own ever touches, unless it is made a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    start: *mut u8,
    bytes: usize,
    /// If it is there: then nobody follows the pointer.
    device: Option<DeviceMemory>,
}

// SAFETY: one thread at a time uses it (the caller's, or before the vote the one that votes), and the memory behind
// it is plain numbers (`Element`).
unsafe impl Send for Span {}
// SAFETY: as above: the operation that owns it orders its uses.
unsafe impl Sync for Span {}

impl Span {
    fn on_host(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes, device: None }
    }

    fn on_device(memory: DeviceMemory) -> Self {
        Self { start: memory.range().start as usize as *mut u8, bytes: memory.bytes(), device: Some(memory) }
    }

    /// The addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.bytes
    }

    /// As a tensor of a collective in which this rank only gives it.
    pub(crate) fn given(&self) -> RawTensor {
        self.raw(Role::Gives).read_only()
    }

    /// As a tensor of a collective that makes this use of it.
    pub(crate) fn raw(&self, role: Role) -> RawTensor {
        match &self.device {
            None => RawTensor::in_place(self.start, self.bytes, role),
            Some(memory) => RawTensor::on_device(OnDevice::new(memory.clone(), memory.clone(), role)),
        }
    }

    /// As a tensor of which the result stays in memory of the library, as long: in `room`, if this one is on the host.
    pub(crate) fn folded_into(&self, room: &Backup) -> RawTensor {
        match &self.device {
            None => RawTensor::from_into(self.start, self.bytes, room),
            Some(_) => self.raw(Role::Folds),
        }
    }

    /// As a tensor that is folded, of which this rank's part of the result goes to `recv`; `None` if not both are on
    /// devices.
    pub(crate) fn scattered_into(&self, recv: &Self) -> Option<OnDevice> {
        let (send, recv) = self.device.clone().zip(recv.device.clone())?;
        Some(OnDevice::new(send, recv, Role::Scatters))
    }

    /// Puts all of it into a tensor that is to get it, from byte `at` of that on. Before a vote.
    pub(crate) fn put_into(&self, tensor: &RawTensor, at: usize) -> Result<(), Error> {
        match (&self.device, tensor.device()) {
            (Some(memory), Some(device)) => device.write_from(at, memory),
            (None, Some(device)) => device.write(at, &self.read(0..self.bytes)?),
            (_, None) => self.pieces().try_for_each(|piece| {
                let to = at + piece.start;
                self.read(piece).map(|content| tensor.put(to, &content))
            }),
        }
    }

    /// Whether it is on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// The same memory after what is queued now on its stream, for which this waits.
    pub(crate) fn settled(&self) -> Result<Self, Error> {
        let Some(memory) = &self.device else { return Ok(self.clone()) };
        let settled = memory.clone().settled();
        Ok(Self::on_device(settled.map_err(|error| refused("waiting for the stream of a tensor", error))?))
    }

    /// All of it, by pieces of whole elements: one, if it is on the host.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (bytes, step) = (self.bytes, if self.is_on_device() { PIECE_BYTES } else { self.bytes.max(1) });
        (0..bytes).step_by(step).map(move |at| at..bytes.min(at + step))
    }

    /// Some of its bytes, a copy if it is on a device.
    pub(crate) fn read(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>, Error> {
        self.check(&range);
        if let Some(memory) = &self.device {
            let content = memory.part(range).to_vec();
            return content.map(Cow::Owned).map_err(|error| refused("reading a tensor on a device", error));
        }
        // SAFETY: the range lies inside; the caller's borrow covers these bytes until the operation is over, and only
        // the operation uses them.
        Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }))
    }

    /// Writes some of its bytes, all of which `work` fills. Only of a [`Target`].
    pub(crate) fn fill(&self, range: Range<usize>, work: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let empty = |len: usize| Ok(vec![0; len]);
        self.write(range, empty, work)
    }

    /// Changes some of its bytes. Only of a [`Target`].
    pub(crate) fn change(&self, range: Range<usize>, work: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let content = |_| Ok(self.read(range.clone())?.into_owned());
        self.write(range.clone(), content, work)
    }

    /// Has `work` write some of its bytes, or, if it is on a device, memory of the host that is copied there.
    fn write(
        &self,
        range: Range<usize>,
        on_host: impl FnOnce(usize) -> Result<Vec<u8>, Error>,
        work: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.check(&range);
        if let Some(memory) = &self.device {
            let mut content = on_host(range.len())?;
            work(&mut content);
            return memory.clone().write(range.start, &content).map_err(unwritten);
        }
        // SAFETY: the range lies inside; the caller's exclusive borrow covers these bytes until the operation is over,
        // and only the operation's present thread uses them.
        work(unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) });
        Ok(())
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "a range inside of the memory");
    }
}
