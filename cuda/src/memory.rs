//! Memory of a device that somebody else owns.

use crate::{
    CudaError,
    device::Device,
    hash::{self, Stretch},
    lane::{ahead_of_stream, with_lane},
    quantise::{self, Elements},
};
use pccl_hash::{
    Digest128,
    tree::{self, MEBIBYTE},
};
use pccl_quant::quantise::{Codec, Rounding};
use std::{ops::Range, sync::Arc};

/// Device memory that is lent to the library: what a tensor on a device is made of.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    /// `None` if there are no bytes: frameworks give those no address.
    device: Option<Arc<Device>>,
    /// Why it is memory of no device, if it was named nevertheless. Each use says so.
    unknown: Option<CudaError>,
    start: u64,
    bytes: usize,
    /// `None` if nothing that is queued anywhere has to be waited for.
    stream: Option<u64>,
}

impl DeviceMemory {
    /// `bytes` bytes of device memory from `address` on. Every use begins after what is queued then on `stream`, a
    /// stream of the same device (0: the default stream), and is over when the call returns.
    ///
    /// # Safety
    /// As long as this value and its clones live, the bytes are memory of the device that may be read and written, and
    /// `stream` exists. While a call with one of them is under way, nothing else writes the bytes, and nothing reads
    /// them if the call writes.
    ///
    /// # Errors
    /// `NoDriver` where there is no driver, `NotDeviceMemory` for any other address.
    pub unsafe fn from_raw(address: u64, bytes: usize, stream: u64) -> Result<Self, CudaError> {
        let device = if bytes == 0 { None } else { Some(Device::of(address)?) };
        Ok(Self { device, unknown: None, start: address, bytes, stream: Some(stream) })
    }

    /// The same, but an address that is no device memory is told by each use of it: a collective that is given it fails
    /// for all peers, and none of them waits for one that makes no call.
    ///
    /// # Safety
    /// As for [`DeviceMemory::from_raw`], if it is memory of a device.
    #[must_use]
    pub unsafe fn named(address: u64, bytes: usize, stream: u64) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::from_raw(address, bytes, stream) }.unwrap_or_else(|error| Self {
            device: None,
            unknown: Some(error),
            start: address,
            bytes,
            stream: Some(stream),
        })
    }

    /// Whether it is memory of a device, or has no bytes. No, if it is for want of a driver.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self.unknown, Some(CudaError::NotDeviceMemory { .. } | CudaError::NoDriver(_)))
    }

    /// The device, if there are bytes.
    fn place(&self) -> Result<Option<&Arc<Device>>, CudaError> {
        self.unknown.clone().map_or(Ok(self.device.as_ref()), Err)
    }

    /// The same memory after what is queued now on its stream, for which this waits: uses of what is returned, and of
    /// its parts, wait for no stream any more.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn settled(self) -> Result<Self, CudaError> {
        if let Some(device) = self.place()? {
            with_lane(device, self.stream, |_| Ok(()))?;
        }
        Ok(Self { stream: None, ..self })
    }

    /// Copies all of `other`, which is as long, to `at`: on the device, if both are on one.
    ///
    /// # Errors
    /// Those of the driver; what is there is undefined then.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn write_from(&mut self, at: usize, other: &Self) -> Result<(), CudaError> {
        assert!(at <= self.bytes && other.bytes <= self.bytes - at, "a range inside of the memory");
        let (Some(device), Some(from)) = (self.place()?, other.place()?) else { return Ok(()) };
        if !Arc::ptr_eq(device, from) {
            return self.write(at, &other.to_vec()?);
        }
        let other = if other.stream == self.stream { other.clone() } else { other.clone().settled()? };
        // SAFETY: both ranges lie inside, and the promises of `from_raw` cover them.
        with_lane(device, self.stream, |lane| unsafe {
            lane.copy(self.start + at as u64, other.start, other.bytes)
        })
    }

    /// Some of its bytes.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[must_use]
    pub fn part(&self, bytes: Range<usize>) -> Self {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "a range inside of the memory");
        Self { start: self.start + bytes.start as u64, bytes: bytes.len(), ..self.clone() }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes as u64
    }

    /// The number of the device; `None` for memory without bytes.
    pub fn device(&self) -> Option<u32> {
        self.device.as_ref().map(|device| device.ordinal.unsigned_abs())
    }

    /// Copies what is at `at` into `to`.
    ///
    /// # Errors
    /// Those of the driver; `to` is undefined then.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), CudaError> {
        assert!(at <= self.bytes && to.len() <= self.bytes - at, "a range inside of the memory");
        let Some(device) = self.place()?.filter(|_| !to.is_empty()) else { return Ok(()) };
        // SAFETY: the range lies inside, and the promise of `from_raw` covers it.
        with_lane(device, self.stream, |lane| unsafe { lane.read(self.start + at as u64, to) })
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// Those of the driver; what is there is undefined then.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at, "a range inside of the memory");
        let Some(device) = self.place()?.filter(|_| !bytes.is_empty()) else { return Ok(()) };
        // SAFETY: the range lies inside, and the promise of `from_raw` covers it.
        with_lane(device, self.stream, |lane| unsafe { lane.write(self.start + at as u64, bytes) })
    }

    /// Copies `bytes` to `at` for what is queued on the stream from now on: they need not be there when this returns,
    /// and the stream waits for them. Of what is longer than 64 MiB, or if there are several such copies, this waits
    /// for some. An error that comes later is one of the device, which later uses tell.
    ///
    /// # Safety
    /// Until what is queued on the stream when this returns is over, the bytes are memory of the device, which nobody
    /// uses but by what is queued on the stream afterwards. After an error they are the caller's again at once.
    ///
    /// # Errors
    /// Those of the driver; what is there is undefined then, and no copy is under way.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub unsafe fn write_on_stream(&mut self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at, "a range inside of the memory");
        let Some(device) = self.place()?.filter(|_| !bytes.is_empty()) else { return Ok(()) };
        let Some(stream) = self.stream else { return self.write(at, bytes) };
        // SAFETY: the range lies inside; the rest is the caller's promise.
        ahead_of_stream(device, stream, |lane| unsafe { lane.write_wide(self.start + at as u64, bytes) })
    }

    /// The content, copied to the host.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_vec(&self) -> Result<Vec<u8>, CudaError> {
        let mut content = vec![0; self.bytes];
        self.read(0, &mut content).map(|()| content)
    }

    /// The digests of level 1 of the tree, one per MiB ([`pccl_hash::level1_digests`]).
    ///
    /// # Errors
    /// Those of the driver.
    pub fn level1_digests(&self) -> Result<Vec<Digest128>, CudaError> {
        Self::level1_digests_of(&[self]).map(|mut all| all.pop().unwrap_or_default())
    }

    /// The same of several: one launch for all on one device and stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn level1_digests_of(memories: &[&Self]) -> Result<Vec<Vec<Digest128>>, CudaError> {
        let is_alike =
            |a: &&Self, b: &&Self| a.device() == b.device() && a.stream == b.stream && a.device.is_some();
        let mut all = Vec::with_capacity(memories.len());
        for batch in memories.chunk_by(is_alike) {
            all.extend(Self::batch(batch)?);
        }
        Ok(all)
    }

    /// The digests of level 1 of MiBs with these numbers.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there is no such MiB.
    pub fn mebibyte_digests(&self, numbers: &[u64]) -> Result<Vec<Digest128>, CudaError> {
        let mut pieces = Vec::with_capacity(numbers.len());
        for number in numbers {
            let at = usize::try_from(*number).map_or(usize::MAX, |number| number.saturating_mul(MEBIBYTE));
            assert!(at < self.bytes, "a MiB inside of the memory");
            pieces.push(self.part(at..at + MEBIBYTE.min(self.bytes - at)));
        }
        let pieces: Vec<&Self> = pieces.iter().collect();
        let all = Self::level1_digests_of(&pieces)?;
        Ok(all.into_iter().flatten().collect())
    }

    /// The digests of level 1 from the MiB `from` on: what a launch does that begins in the middle.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn level1_digests_from(&self, from: u64) -> Result<Vec<Digest128>, CudaError> {
        match self.place()? {
            Some(device) => hash::level1_digests(device, self.stream, &[self.stretch()], from),
            None => Ok(tree::level1_digests(&[])),
        }
    }

    /// simplehash, as [`pccl_hash::simplehash()`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn simplehash(&self) -> Result<u32, CudaError> {
        match self.place()? {
            Some(device) => hash::simplehash(device, self.stream, self.stretch()),
            None => Ok(0),
        }
    }

    /// Whether there are kernels for this scheme and type of elements, and a compiler for them; a warning says if there
    /// is none. Compiles them at first use.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn has_codec(&self, codec: &Codec) -> Result<bool, CudaError> {
        match self.place()? {
            Some(device) => quantise::has_codec(device, codec),
            None => Ok(false),
        }
    }

    /// Encodes all elements into `encoded`, which has the length that belongs to them: the bytes of [`Codec::encode`].
    /// `first_element` as there.
    ///
    /// # Errors
    /// Those of the driver; `encoded` is undefined then. `NoCompiler` without [`DeviceMemory::has_codec`].
    ///
    /// # Panics
    /// If the lengths do not belong together.
    pub fn encode(
        &self,
        codec: &Codec,
        encoded: &mut [u8],
        (rounding, first_element): (Rounding, u64),
    ) -> Result<(), CudaError> {
        let Some(place) = self.elements(codec, encoded.len())? else { return Ok(()) };
        quantise::encode(place, codec, encoded, (rounding, first_element))
    }

    /// Adds what `encoded` stands for to all elements, divides the sums by a number of ranks if there is one, and
    /// encodes them into `encoded`: the bytes of [`Codec::decode_add`], [`pccl_quant::finish_average`] and
    /// [`Codec::encode`]. The elements do not change. Otherwise as [`DeviceMemory::encode`].
    ///
    /// # Errors
    /// As [`DeviceMemory::encode`].
    ///
    /// # Panics
    /// As [`DeviceMemory::encode`].
    pub fn add_and_encode(
        &self,
        codec: &Codec,
        encoded: &mut [u8],
        ranks: Option<u32>,
        (rounding, first_element): (Rounding, u64),
    ) -> Result<(), CudaError> {
        let Some(place) = self.elements(codec, encoded.len())? else { return Ok(()) };
        quantise::add_and_encode(place, codec, encoded, ranks, (rounding, first_element))
    }

    /// Puts what `encoded` stands for in the place of all elements, as [`Codec::decode_set`].
    ///
    /// # Errors
    /// Those of the driver; the elements are undefined then. `NoCompiler` as for [`DeviceMemory::encode`].
    ///
    /// # Panics
    /// If the lengths do not belong together.
    pub fn decode_set(&mut self, codec: &Codec, encoded: &[u8]) -> Result<(), CudaError> {
        let Some(place) = self.elements(codec, encoded.len())? else { return Ok(()) };
        quantise::decode_set(place, codec, encoded)
    }

    /// Where the elements are; `None` if there are none.
    fn elements(&self, codec: &Codec, encoded_bytes: usize) -> Result<Option<Elements<'_>>, CudaError> {
        let size = codec.data_type().size_bytes();
        let count = self.bytes / size;
        let fits = self.bytes.is_multiple_of(size) && codec.encoded_len(count) == Some(encoded_bytes);
        assert!(fits, "as many encoded bytes as belong to the elements");
        let at = |device| Elements { device, stream: self.stream, start: self.start, count };
        Ok(self.place()?.map(at))
    }

    fn stretch(&self) -> Stretch {
        Stretch { start: self.start, bytes: self.bytes as u64 }
    }

    /// The digests of memories that have the same device and stream.
    fn batch(batch: &[&Self]) -> Result<Vec<Vec<Digest128>>, CudaError> {
        let on_host = |error| {
            let hash = |it: &&Self| it.level1_digests_on_host();
            match error {
                CudaError::NoCompiler(_) => batch.iter().map(hash).collect(),
                error => Err(error),
            }
        };
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let Some(device) = first.place()? else {
            return Ok(batch.iter().map(|_| tree::level1_digests(&[])).collect());
        };
        let stretches: Vec<Stretch> = batch.iter().map(|it| it.stretch()).collect();
        let digests = match hash::level1_digests(device, first.stream, &stretches, 0) {
            Ok(digests) => digests,
            Err(error) => return on_host(error),
        };
        let mut rest = digests.into_iter();
        let counts = batch.iter().map(|it| tree::level1_count(it.bytes as u64) as usize);
        Ok(counts.map(|count| rest.by_ref().take(count).collect()).collect())
    }

    /// The digests of level 1, of copies: where kernels cannot be compiled.
    fn level1_digests_on_host(&self) -> Result<Vec<Digest128>, CudaError> {
        let mut piece = vec![0; MEBIBYTE.min(self.bytes)];
        let mut digests = Vec::new();
        for at in (0..self.bytes).step_by(MEBIBYTE) {
            let piece = &mut piece[..MEBIBYTE.min(self.bytes - at)];
            self.read(at, piece)?;
            digests.push(tree::mebibyte_digest(piece));
        }
        Ok(digests)
    }
}
