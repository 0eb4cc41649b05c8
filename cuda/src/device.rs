//! Devices: one context each, the kernels in it, and lanes that wait for work.

use crate::{
    CudaError,
    driver::{Driver, Entered, Handle},
    kernels::Kernels,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// A device of this process.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: i32,
    context: Handle,
    kernels: OnceLock<Result<Kernels, CudaError>>,
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
        let device = Arc::new(Self { driver, ordinal, context, kernels: OnceLock::new() });
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
    pub(crate) fn kernels(&self) -> Result<&Kernels, CudaError> {
        let load = || {
            let kernels = Kernels::load(self.driver, self.driver.capability(self.ordinal)?);
            if let Err(error) = &kernels {
                log::warn!("device {}: {error}; contents are hashed on the host", self.ordinal);
            }
            kernels
        };
        self.kernels.get_or_init(load).as_ref().map_err(CudaError::clone)
    }
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
