//! Devices: one context each, the kernels in it, and lanes that wait for work.

use crate::{
    CudaError,
    driver::{Driver, Entered, Handle},
    kernels::{Coders, Kernels},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// A device of this process.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: i32,
    context: Handle,
    kernels: Loaded<Kernels>,
    coders: Loaded<Arc<Coders>>,
}

/// A value that is loaded at first use.
#[derive(Debug)]
struct Loaded<T>(Mutex<Option<Result<T, CudaError>>>);

impl<T: Clone> Loaded<T> {
    const fn nothing() -> Self {
        Self(Mutex::new(None))
    }

    /// The result of `load`, which is asked once. After any failure but that of the compiler it is asked again.
    fn get(&self, load: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        let mut loaded = self.0.lock();
        if let Some(loaded) = &*loaded {
            return loaded.clone();
        }
        let result = load();
        if matches!(&result, Ok(_) | Err(CudaError::NoCompiler(_))) {
            *loaded = Some(result.clone());
        }
        result
    }
}

impl Device {
    /// The device with this number.
    pub(crate) fn get(ordinal: i32) -> Result<Arc<Self>, CudaError> {
        static DEVICES: Mutex<BTreeMap<i32, Arc<Device>>> = Mutex::new(BTreeMap::new());
        let driver = Driver::get()?;
        let mut devices = DEVICES.lock();
        if let Some(device) = devices.get(&ordinal) {
            return Ok(device.clone());
        }
        let context = driver.context(ordinal)?;
        let (kernels, coders) = (Loaded::nothing(), Loaded::nothing());
        let device = Arc::new(Self { driver, ordinal, context, kernels, coders });
        devices.insert(ordinal, device.clone());
        Ok(device)
    }

    /// The device that an address belongs to.
    pub(crate) fn of(address: u64) -> Result<Arc<Self>, CudaError> {
        let ordinal = Driver::get()?.device_of(address);
        Self::get(ordinal.ok_or(CudaError::NotDeviceMemory { address })?)
    }

    /// Makes it the device of this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        self.driver.enter(self.context)
    }

    /// The kernels, compiled at first use. Only between `enter` and the end of its guard.
    pub(crate) fn kernels(&self) -> Result<Kernels, CudaError> {
        let load = || {
            let kernels = Kernels::load(self.driver, self.driver.capability(self.ordinal)?);
            if let Err(error) = &kernels {
                log::warn!("device {}: {error}; contents are hashed on the host", self.ordinal);
            }
            kernels
        };
        self.kernels.get(load)
    }

    /// The kernels of quantisation, as [`Device::kernels`].
    pub(crate) fn coders(&self) -> Result<Arc<Coders>, CudaError> {
        let load = || {
            let coders = Coders::load(self.driver, self.driver.capability(self.ordinal)?);
            if let Err(error) = &coders {
                log::warn!("device {}: {error}; tensors are quantised on the host", self.ordinal);
            }
            coders.map(Arc::new)
        };
        self.coders.get(load)
    }
}

/// Whether this build looks for a driver, and one loads. It may still find no device, see [`usable`].
pub fn is_cuda_supported() -> bool {
    crate::HAS_CUDA && Driver::is_there()
}

/// How many devices this process can use.
///
/// # Errors
/// `NoDriver` where there is none, or no device.
pub fn usable() -> Result<u32, CudaError> {
    match Driver::get()?.count()? {
        count @ 1.. => Ok(count.unsigned_abs()),
        _ => Err(CudaError::NoDriver("the driver of CUDA finds no device".into())),
    }
}
