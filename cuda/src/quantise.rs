//! Quantisation where the elements lie, by the kernels of `kernels/quantise.cu`.
//!
//! Elements stay on the device; encoded bytes go through the ring of a lane and through its scratch memory, a batch at
//! a time.

use crate::{
    CudaError,
    device::Device,
    driver::{Address, Handle},
    kernels::Coder,
    lane::{Argument, Lane, SCRATCH_BYTES, with_lane},
};
use pccl_quant::quantise::{Codec, Rounding};
use std::{ops::Range, sync::Arc};

/// Elements of a batch: whole blocks, of which the encoded form fits half of the scratch memory.
const BATCH_ELEMENTS: usize = 1 << 18;
/// Half of the scratch memory.
const HALF_BYTES: usize = SCRATCH_BYTES / 2;
/// The most that an element becomes: 2 bytes.
const _: () = assert!(BATCH_ELEMENTS * 2 <= HALF_BYTES);

/// Threads of a block, which are also the elements that a block of the kernels for decoding and for casts takes.
const THREADS: u32 = 256;
/// Records that a block of the kernels for encoding takes.
const RECORDS: u64 = 4;
/// Elements that draw their random numbers from one key.
const SEGMENT: u64 = 64;

/// Elements on a device. At least one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements<'d> {
    pub(crate) device: &'d Arc<Device>,
    /// The stream that they come after, as for [`with_lane`].
    pub(crate) stream: Option<u64>,
    pub(crate) start: Address,
    pub(crate) count: usize,
}

/// Whether there are kernels for a codec, and a compiler for them.
pub(crate) fn has_codec(device: &Arc<Device>, codec: &Codec) -> Result<bool, CudaError> {
    let _entered = device.enter()?;
    match device.coders() {
        Ok(coders) => Ok(coders.get(codec.data_type(), codec.scheme().algorithm()).is_some()),
        Err(CudaError::NoCompiler(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The kernels of a codec, and its numbers.
#[derive(Debug)]
struct Coding<'c> {
    codec: &'c Codec,
    coder: Coder,
    block: usize,
}

impl<'c> Coding<'c> {
    /// Only with the device entered.
    fn new(device: &Device, codec: &'c Codec) -> Result<Self, CudaError> {
        let coder = device.coders()?.get(codec.data_type(), codec.scheme().algorithm());
        let missing = || CudaError::NoCompiler(format!("there is no kernel for {}", codec.scheme()));
        let (coder, block) = coder.zip(codec.piece_elements()).ok_or_else(missing)?;
        Ok(Self { codec, coder, block })
    }

    /// Elements of each batch, and their encoded bytes.
    fn batches(&self, count: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<'_> {
        let encoded = |elements: usize| self.codec.encoded_len(elements).unwrap_or(0);
        (0..count).step_by(BATCH_ELEMENTS).map(move |first| {
            let end = count.min(first + BATCH_ELEMENTS);
            (first..end, encoded(first)..encoded(end))
        })
    }

    fn address(&self, start: Address, element: usize) -> Address {
        start + (element * self.codec.data_type().size_bytes()) as u64
    }

    /// Queues the encoding of elements from `start` on, of which what was received lies at `received`, if anything was.
    ///
    /// # Safety
    /// As [`Lane::launch`]: elements, what was received, and room for what they become.
    unsafe fn launch_encode(
        &self,
        lane: &mut Lane,
        (start, count): (Address, usize),
        (encoded, received, ranks): (Address, Address, Option<u32>),
        (rounding, first_element): (Rounding, u64),
    ) -> Result<(), CudaError> {
        let (is_stochastic, key) = match rounding {
            Rounding::NearestEven => (0, 0),
            Rounding::Stochastic(key) => (1, key.bits()),
        };
        let arguments = [
            Argument::U64(start),
            Argument::U64(count as u64),
            Argument::U32(self.block as u32),
            Argument::U64(encoded),
            Argument::U64(received),
            Argument::U32(ranks.unwrap_or(0)),
            Argument::U32(is_stochastic),
            Argument::U64(key),
            Argument::U64(first_element / SEGMENT),
        ];
        let per_block = if self.block == 1 { u64::from(THREADS) } else { RECORDS * self.block as u64 };
        // SAFETY: the arguments are those of the kernel; the rest is the caller's promise.
        unsafe { self.launch(lane, self.coder.encode, (count as u64).div_ceil(per_block), &arguments) }
    }

    /// # Safety
    /// As [`Lane::launch`].
    unsafe fn launch(
        &self,
        lane: &mut Lane,
        kernel: Handle,
        blocks: u64,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        // A batch has few enough blocks.
        // SAFETY: the caller's promise.
        unsafe { lane.launch(kernel, blocks as u32, THREADS, arguments) }
    }
}

/// See [`crate::DeviceMemory::encode`].
pub(crate) fn encode(
    elements: Elements<'_>,
    codec: &Codec,
    encoded: &mut [u8],
    (rounding, first_element): (Rounding, u64),
) -> Result<(), CudaError> {
    with_lane(elements.device, elements.stream, |lane| {
        let coding = Coding::new(elements.device, codec)?;
        let scratch = lane.scratch()?;
        let half = |number: usize| scratch + (number % 2 * HALF_BYTES) as u64;
        let launch = |lane: &mut Lane, number: usize, batch: &Range<usize>| {
            let place = (coding.address(elements.start, batch.start), batch.len());
            let rounding = (rounding, first_element + batch.start as u64);
            // SAFETY: a batch fits half of the scratch memory, which is the lane's own, and the elements are memory of
            // this device until the lane is synchronised (`DeviceMemory::from_raw`).
            unsafe { coding.launch_encode(lane, place, (half(number), 0, None), rounding) }
        };
        let mut batches = coding.batches(elements.count).enumerate().peekable();
        if let Some((number, (batch, _))) = batches.peek() {
            launch(lane, *number, batch)?;
        }
        while let Some((number, (_, bytes))) = batches.next() {
            // The next one is at work while this one is copied.
            if let Some((number, (batch, _))) = batches.peek() {
                launch(lane, *number, batch)?;
            }
            // SAFETY: the launched kernels have filled this number of bytes there.
            unsafe { lane.read(half(number), &mut encoded[bytes])? };
        }
        Ok(())
    })
}

/// See [`crate::DeviceMemory::add_and_encode`].
pub(crate) fn add_and_encode(
    elements: Elements<'_>,
    codec: &Codec,
    encoded: &mut [u8],
    ranks: Option<u32>,
    (rounding, first_element): (Rounding, u64),
) -> Result<(), CudaError> {
    with_lane(elements.device, elements.stream, |lane| {
        let coding = Coding::new(elements.device, codec)?;
        let received = lane.scratch()?;
        let sums = received + HALF_BYTES as u64;
        for (batch, bytes) in coding.batches(elements.count) {
            let place = (coding.address(elements.start, batch.start), batch.len());
            let rounding = (rounding, first_element + batch.start as u64);
            let encoded = &mut encoded[bytes];
            // SAFETY: as in `encode`; received bytes and sums have half of the scratch memory each.
            unsafe {
                lane.write(received, encoded)?;
                coding.launch_encode(lane, place, (sums, received, ranks), rounding)?;
                lane.read(sums, encoded)?;
            }
        }
        Ok(())
    })
}

/// See [`crate::DeviceMemory::decode_set`].
pub(crate) fn decode_set(elements: Elements<'_>, codec: &Codec, encoded: &[u8]) -> Result<(), CudaError> {
    with_lane(elements.device, elements.stream, |lane| {
        let coding = Coding::new(elements.device, codec)?;
        let scratch = lane.scratch()?;
        for (number, (batch, bytes)) in coding.batches(elements.count).enumerate() {
            let half = scratch + (number % 2 * HALF_BYTES) as u64;
            let arguments = [
                Argument::U64(half),
                Argument::U64(batch.len() as u64),
                Argument::U32(coding.block as u32),
                Argument::U64(coding.address(elements.start, batch.start)),
            ];
            let blocks = (batch.len() as u64).div_ceil(u64::from(THREADS));
            // SAFETY: as in `encode`; what is queued on a lane runs in its order, so the half is free again when the
            // copy to it begins.
            unsafe {
                lane.write(half, &encoded[bytes])?;
                coding.launch(lane, coding.coder.decode, blocks, &arguments)?;
            }
        }
        Ok(())
    })
}
