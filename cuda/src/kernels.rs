//! The kernels, compiled for a device.

use crate::{
    CudaError,
    cache::Cache,
    driver::{Driver, Handle, Nvrtc},
};
use parking_lot::Mutex;
use pccl_quant::{DataType, quantise::Algorithm};
use std::{collections::BTreeMap, ffi::CString};

/// The source of the kernels of hashes.
pub(crate) const HASHES: &str = include_str!("../kernels/hash.cu");
/// The source of the kernels of quantisation.
pub(crate) const CODERS: &str = include_str!("../kernels/quantise.cu");
/// The targets to ask for where the compiler does not know the device: any newer device runs the image of an older one.
const OLDER: [u32; 4] = [90, 80, 75, 70];

/// The kernels of hashes, of one context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) tree_level1: Handle,
    pub(crate) simplehash_blocks: Handle,
    pub(crate) simplehash_end: Handle,
}

impl Kernels {
    /// Compiles the kernels and loads them into the current context.
    pub(crate) fn load(driver: &Driver, capability: u32) -> Result<Self, CudaError> {
        let image = image(HASHES, capability)?;
        let names = [c"pccl_tree_level1", c"pccl_simplehash_blocks", c"pccl_simplehash_end"];
        let [tree_level1, simplehash_blocks, simplehash_end] = driver.kernels(&image, names)?;
        Ok(Self { tree_level1, simplehash_blocks, simplehash_end })
    }
}

/// The two kernels of one type of elements and one scheme.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coder {
    pub(crate) encode: Handle,
    pub(crate) decode: Handle,
}

/// The kernels of quantisation, of one context.
#[derive(Debug)]
pub(crate) struct Coders(BTreeMap<(DataType, Algorithm), Coder>);

/// The types and schemes for which there are kernels, with their names there.
const TYPES: [(DataType, &str); 4] = [
    (DataType::Float32, "f32"),
    (DataType::Float64, "f64"),
    (DataType::Float16, "f16"),
    (DataType::BFloat16, "bf16"),
];
const SCHEMES: [(Algorithm, &str); 7] = [
    (Algorithm::BlockAffineU8, "affine_u8"),
    (Algorithm::BlockAffineU4, "affine_u4"),
    (Algorithm::BlockSymmetricI8, "symmetric_i8"),
    (Algorithm::BlockE4m3, "e4m3"),
    (Algorithm::BlockE5m2, "e5m2"),
    (Algorithm::CastBf16, "bf16"),
    (Algorithm::CastF16, "f16"),
];

impl Coders {
    /// As [`Kernels::load`].
    pub(crate) fn load(driver: &Driver, capability: u32) -> Result<Self, CudaError> {
        let image = image(CODERS, capability)?;
        let mut all = BTreeMap::new();
        let text =
            |text: String| CString::new(text).map_err(|error| CudaError::NoCompiler(error.to_string()));
        let mut kinds = Vec::new();
        let mut names = Vec::new();
        for (data_type, of_type) in TYPES {
            for (algorithm, of_scheme) in SCHEMES {
                kinds.push((data_type, algorithm));
                names.push(text(format!("pccl_encode_{of_type}_{of_scheme}"))?);
                names.push(text(format!("pccl_decode_{of_type}_{of_scheme}"))?);
            }
        }
        let handles = driver.kernels_named(&image, names.iter().map(CString::as_c_str))?;
        for (kind, [encode, decode]) in kinds.into_iter().zip(handles.as_chunks().0) {
            all.insert(kind, Coder { encode: *encode, decode: *decode });
        }
        Ok(Self(all))
    }

    /// Those for a type and a scheme, if there are any.
    pub(crate) fn get(&self, data_type: DataType, algorithm: Algorithm) -> Option<Coder> {
        self.0.get(&(data_type, algorithm)).copied()
    }
}

/// The image of a source for devices of a compute capability; found or compiled once in a process.
fn image(source: &'static str, capability: u32) -> Result<Vec<u8>, CudaError> {
    static IMAGES: Mutex<BTreeMap<(&str, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut images = IMAGES.lock();
    if let Some(image) = images.get(&(source, capability)) {
        return Ok(image.clone());
    }
    let compiler = Nvrtc::get()?;
    let (cache, version) = (Cache::of_environment(), compiler.version()?);
    let compile = |number: u32| {
        let option = format!("--gpu-architecture=compute_{number}");
        let key = [source, version.as_str(), option.as_str()];
        if let Some(image) = cache.get(&key) {
            return Ok(image);
        }
        let image = compiler.compile(source, &option)?;
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
    images.insert((source, capability), image.clone());
    Ok(image)
}
