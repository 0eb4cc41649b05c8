//! The kernels, compiled for a device.

use crate::{
    CudaError,
    cache::Cache,
    driver::{Driver, Handle, Nvrtc},
};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The source of all kernels.
pub(crate) const SOURCE: &str = include_str!("../kernels/hash.cu");
/// What is asked for where the compiler does not know the device: any newer device runs the image of an older one.
const OLDER: [u32; 4] = [90, 80, 75, 70];

/// The kernels of one context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) tree_level1: Handle,
    pub(crate) simplehash_blocks: Handle,
    pub(crate) simplehash_end: Handle,
}

impl Kernels {
    /// Compiles the kernels and loads them into the current context.
    pub(crate) fn load(driver: &Driver, capability: u32) -> Result<Self, CudaError> {
        let image = image(capability)?;
        let names = [c"pccl_tree_level1", c"pccl_simplehash_blocks", c"pccl_simplehash_end"];
        let [tree_level1, simplehash_blocks, simplehash_end] = driver.kernels(&image, names)?;
        Ok(Self { tree_level1, simplehash_blocks, simplehash_end })
    }
}

/// The image for devices of a compute capability; found or compiled once in a process.
fn image(capability: u32) -> Result<Vec<u8>, CudaError> {
    static IMAGES: Mutex<BTreeMap<u32, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut images = IMAGES.lock();
    if let Some(image) = images.get(&capability) {
        return Ok(image.clone());
    }
    let compiler = Nvrtc::get()?;
    let (cache, version) = (Cache::of_environment(), compiler.version()?);
    let compile = |number: u32| {
        let option = format!("--gpu-architecture=compute_{number}");
        let key = [SOURCE, version.as_str(), option.as_str()];
        if let Some(image) = cache.get(&key) {
            return Ok(image);
        }
        let image = compiler.compile(SOURCE, &option)?;
        cache.put(&key, &image);
        Ok(image)
    };
    let older = OLDER.into_iter().filter(|older| *older < capability);
    let mut result = compile(capability);
    for number in older {
        if result.is_ok() {
            break;
        }
        result = compile(number);
    }
    let image = result?;
    images.insert(capability, image.clone());
    Ok(image)
}
