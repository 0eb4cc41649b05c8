//! The functions of the driver and of NVRTC, found at run time.
//!
//! The libraries are found by cudarc. Their functions are not called through it: those panic where a function is
//! missing, and have enums for results, which a newer driver's numbers do not fit.

use crate::CudaError;
#[cfg(feature = "driver")]
use cudarc::{driver::sys as cuda, nvrtc::sys as nvrtc};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
    sync::OnceLock,
};

/// A stream, event, context, module or function, whose memory is the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: handles are names; the driver takes them from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// An address on a device.
pub(crate) type Address = u64;

/// A struct of functions that have these names in a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident: fn($($arg:ty),*);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $table { $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> u32,)* }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}

/// The functions of a table, looked up in a library of cudarc.
#[cfg(feature = "driver")]
macro_rules! look_up {
    ($library:expr, $table:ident { $($name:ident),* $(,)? }) => {
        Ok($table { $($name: {
            // SAFETY: the function with this name has this type, by the header of CUDA; numbers of enums are as wide
            // as u32.
            *unsafe { $library.get(concat!(stringify!($name), "\0").as_bytes()) }
                .map_err(|error| error.to_string())?
        },)* })
    };
}

functions! {
    /// The functions of the driver that this crate uses.
    Driver {
        cuInit: fn(c_uint);
        cuDeviceGetCount: fn(*mut c_int);
        cuDeviceGet: fn(*mut c_int, c_int);
        cuDeviceGetAttribute: fn(*mut c_int, c_int, c_int);
        cuDevicePrimaryCtxRetain: fn(*mut *mut c_void, c_int);
        cuCtxPushCurrent_v2: fn(*mut c_void);
        cuCtxPopCurrent_v2: fn(*mut *mut c_void);
        cuMemAlloc_v2: fn(*mut u64, usize);
        cuMemFree_v2: fn(u64);
        cuMemHostAlloc: fn(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost: fn(*mut c_void);
        cuMemcpyDtoHAsync_v2: fn(*mut c_void, u64, usize, *mut c_void);
        cuMemcpyHtoDAsync_v2: fn(u64, *const c_void, usize, *mut c_void);
        cuMemcpyDtoDAsync_v2: fn(u64, u64, usize, *mut c_void);
        cuStreamCreate: fn(*mut *mut c_void, c_uint);
        cuStreamDestroy_v2: fn(*mut c_void);
        cuStreamSynchronize: fn(*mut c_void);
        cuStreamQuery: fn(*mut c_void);
        cuStreamWaitEvent: fn(*mut c_void, *mut c_void, c_uint);
        cuEventCreate: fn(*mut *mut c_void, c_uint);
        cuEventDestroy_v2: fn(*mut c_void);
        cuEventRecord: fn(*mut c_void, *mut c_void);
        cuEventSynchronize: fn(*mut c_void);
        cuModuleLoadData: fn(*mut *mut c_void, *const c_void);
        cuModuleGetFunction: fn(*mut *mut c_void, *mut c_void, *const c_char);
        cuLaunchKernel: fn(*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
                           *mut *mut c_void, *mut *mut c_void);
        cuPointerGetAttribute: fn(*mut c_void, c_int, u64);
        cuGetErrorName: fn(c_uint, *mut *const c_char);
    }
}

functions! {
    /// The functions of NVRTC that this crate uses.
    Nvrtc {
        nvrtcVersion: fn(*mut c_int, *mut c_int);
        nvrtcCreateProgram: fn(*mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char,
                               *const *const c_char);
        nvrtcCompileProgram: fn(*mut c_void, c_int, *const *const c_char);
        nvrtcGetPTXSize: fn(*mut c_void, *mut usize);
        nvrtcGetPTX: fn(*mut c_void, *mut c_char);
        nvrtcGetProgramLogSize: fn(*mut c_void, *mut usize);
        nvrtcGetProgramLog: fn(*mut c_void, *mut c_char);
        nvrtcDestroyProgram: fn(*mut *mut c_void);
    }
}

/// Calls a function of the driver; its result becomes an error with its name. The caller says why it may.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $driver.check(stringify!($name), ($driver.$name)($($arg),*))
    };
}
pub(crate) use call;

impl Driver {
    /// The driver of this machine, initialised.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        let load = || Self::load().and_then(Self::initialised).map_err(CudaError::NoDriver);
        DRIVER.get_or_init(load).as_ref().map_err(CudaError::clone)
    }

    /// Whether there is one that loads. Does not initialise it: a process that forks afterwards could not use it.
    pub(crate) fn is_there() -> bool {
        Self::load().is_ok()
    }

    fn initialised(self) -> Result<Self, String> {
        // SAFETY: 0 is the only argument that it takes.
        unsafe { call!(self, cuInit(0)) }.map_err(|error| error.to_string())?;
        Ok(self)
    }

    #[cfg(not(feature = "driver"))]
    fn load() -> Result<Self, String> {
        Err("this library was built without the feature cuda".into())
    }

    #[cfg(feature = "driver")]
    fn load() -> Result<Self, String> {
        // SAFETY: the library is the driver, whose initialisation any process may run.
        if !unsafe { cuda::is_culib_present() } {
            return Err("there is no driver of CUDA (libcuda.so)".into());
        }
        // SAFETY: as above; it was found, so this does not panic.
        let library = unsafe { cuda::culib() };
        look_up!(
            library,
            Driver {
                cuInit,
                cuDeviceGetCount,
                cuDeviceGet,
                cuDeviceGetAttribute,
                cuDevicePrimaryCtxRetain,
                cuCtxPushCurrent_v2,
                cuCtxPopCurrent_v2,
                cuMemAlloc_v2,
                cuMemFree_v2,
                cuMemHostAlloc,
                cuMemFreeHost,
                cuMemcpyDtoHAsync_v2,
                cuMemcpyHtoDAsync_v2,
                cuMemcpyDtoDAsync_v2,
                cuStreamCreate,
                cuStreamDestroy_v2,
                cuStreamSynchronize,
                cuStreamQuery,
                cuStreamWaitEvent,
                cuEventCreate,
                cuEventDestroy_v2,
                cuEventRecord,
                cuEventSynchronize,
                cuModuleLoadData,
                cuModuleGetFunction,
                cuLaunchKernel,
                cuPointerGetAttribute,
                cuGetErrorName,
            }
        )
    }

    /// The result of a call.
    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: it writes an address of a constant, or nothing.
        let found = unsafe { (self.cuGetErrorName)(code, &mut name) } == 0 && !name.is_null();
        // SAFETY: the driver's names end with a zero and stay.
        let name = found.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        Err(CudaError::of(call, code, name.unwrap_or_else(|| "error".into())))
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }.map(|()| count)
    }

    /// The primary context of a device, which is kept for as long as the process lives.
    pub(crate) fn context(&self, ordinal: i32) -> Result<Handle, CudaError> {
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: they write one number and one handle.
        unsafe {
            call!(self, cuDeviceGet(&mut device, ordinal))?;
            call!(self, cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        Ok(Handle(context))
    }

    /// The compute capability of a device: 90 stands for 9.0.
    pub(crate) fn capability(&self, ordinal: i32) -> Result<u32, CudaError> {
        const MAJOR: c_int = 75;
        const MINOR: c_int = 76;
        let (mut device, mut major, mut minor) = (0, 0, 0);
        // SAFETY: they write one number each.
        unsafe {
            call!(self, cuDeviceGet(&mut device, ordinal))?;
            call!(self, cuDeviceGetAttribute(&mut major, MAJOR, device))?;
            call!(self, cuDeviceGetAttribute(&mut minor, MINOR, device))?;
        }
        Ok((major * 10 + minor).unsigned_abs())
    }

    /// The device that an address belongs to; `None` if it is none of device memory.
    pub(crate) fn device_of(&self, address: Address) -> Option<i32> {
        const MEMORY_TYPE: c_int = 2;
        const DEVICE_ORDINAL: c_int = 9;
        const DEVICE: c_uint = 2;
        let (mut kind, mut ordinal): (c_uint, c_int) = (0, -1);
        // SAFETY: both attributes are numbers of four bytes. An address that the driver does not know is an error.
        let known = unsafe {
            (self.cuPointerGetAttribute)((&raw mut kind).cast(), MEMORY_TYPE, address) == 0
                && (self.cuPointerGetAttribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, address) == 0
        };
        (known && kind == DEVICE && ordinal >= 0).then_some(ordinal)
    }

    /// Makes a context the current one of this thread until the guard is dropped.
    pub(crate) fn enter(&self, context: Handle) -> Result<Entered<'_>, CudaError> {
        // SAFETY: contexts are those of `Driver::context`, which stay.
        unsafe { call!(self, cuCtxPushCurrent_v2(context.0)) }.map(|()| Entered { driver: self })
    }

    /// Loads an image, and the kernels with these names, into the current context. They stay.
    pub(crate) fn kernels<const N: usize>(
        &self,
        image: &[u8],
        names: [&CStr; N],
    ) -> Result<[Handle; N], CudaError> {
        let mut kernels = [Handle(null_mut()); N];
        let found = self.kernels_named(image, names.into_iter())?;
        kernels.iter_mut().zip(found).for_each(|(kernel, found)| *kernel = found);
        Ok(kernels)
    }

    /// The same of any number of names.
    pub(crate) fn kernels_named<'n>(
        &self,
        image: &[u8],
        names: impl Iterator<Item = &'n CStr>,
    ) -> Result<Vec<Handle>, CudaError> {
        let mut module = null_mut();
        // SAFETY: an image is what NVRTC has made, which ends with a zero (`Nvrtc::compile`).
        unsafe { call!(self, cuModuleLoadData(&mut module, image.as_ptr().cast()))? };
        names
            .map(|name| {
                let mut kernel = null_mut();
                // SAFETY: it writes one handle, the module was just loaded, and names end with a zero.
                unsafe { call!(self, cuModuleGetFunction(&mut kernel, module, name.as_ptr())) }
                    .map(|()| Handle(kernel))
            })
            .collect()
    }
}

/// A context is the current one as long as this lives.
#[derive(Debug)]
pub(crate) struct Entered<'d> {
    driver: &'d Driver,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: it writes one handle. A call that fails here has failed before, and is told there.
        unsafe { (self.driver.cuCtxPopCurrent_v2)(&mut context) };
    }
}

impl Nvrtc {
    /// The compiler, if there is one.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        static NVRTC: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
        NVRTC.get_or_init(|| Self::load().map_err(CudaError::NoCompiler)).as_ref().map_err(CudaError::clone)
    }

    #[cfg(not(feature = "driver"))]
    fn load() -> Result<Self, String> {
        Err("this library was built without the feature cuda".into())
    }

    #[cfg(feature = "driver")]
    fn load() -> Result<Self, String> {
        // SAFETY: the library is NVRTC, whose initialisation any process may run.
        if !unsafe { nvrtc::is_culib_present() } {
            return Err("there is no NVRTC (libnvrtc.so)".into());
        }
        // SAFETY: as above; it was found, so this does not panic.
        let library = unsafe { nvrtc::culib() };
        look_up!(
            library,
            Nvrtc {
                nvrtcVersion,
                nvrtcCreateProgram,
                nvrtcCompileProgram,
                nvrtcGetPTXSize,
                nvrtcGetPTX,
                nvrtcGetProgramLogSize,
                nvrtcGetProgramLog,
                nvrtcDestroyProgram,
            }
        )
    }

    /// Its version, such as 12.9.
    pub(crate) fn version(&self) -> Result<String, CudaError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        match unsafe { (self.nvrtcVersion)(&mut major, &mut minor) } {
            0 => Ok(format!("{major}.{minor}")),
            error => Err(CudaError::NoCompiler(format!("error {error} of NVRTC"))),
        }
    }

    /// Compiles a program to an image, which ends with a zero.
    pub(crate) fn compile(&self, source: &str, option: &str) -> Result<Vec<u8>, CudaError> {
        let text = |text: &str| CString::new(text).map_err(|error| CudaError::NoCompiler(error.to_string()));
        let (source, option) = (text(source)?, text(option)?);
        let mut program = null_mut();
        let none = std::ptr::null();
        // SAFETY: both texts end with a zero and live until the program is destroyed; there are no headers.
        let made = unsafe {
            (self.nvrtcCreateProgram)(&mut program, source.as_ptr(), c"pccl.cu".as_ptr(), 0, none, none)
        };
        if made != 0 {
            return Err(CudaError::NoCompiler(format!("error {made} of NVRTC")));
        }
        let image = self.image(program, &option);
        // SAFETY: made above, and not used afterwards.
        unsafe { (self.nvrtcDestroyProgram)(&mut program) };
        image
    }

    fn image(&self, program: *mut c_void, option: &CStr) -> Result<Vec<u8>, CudaError> {
        let options = [option.as_ptr()];
        let mut bytes = 0;
        // SAFETY: the program is one, and there is one option.
        let compiled = unsafe { (self.nvrtcCompileProgram)(program, 1, options.as_ptr()) };
        let (size, read) = match compiled {
            0 => (self.nvrtcGetPTXSize, self.nvrtcGetPTX),
            _ => (self.nvrtcGetProgramLogSize, self.nvrtcGetProgramLog),
        };
        // SAFETY: it writes one number.
        let sized = unsafe { size(program, &mut bytes) };
        let mut text = vec![0_u8; if sized == 0 { bytes } else { 0 }];
        // SAFETY: the second function fills as many bytes as the first has said.
        let got = sized == 0 && unsafe { read(program, text.as_mut_ptr().cast()) } == 0;
        if compiled == 0 && got && text.last() == Some(&0) {
            return Ok(text);
        }
        let log = String::from_utf8_lossy(&text).trim_matches(['\0', '\n']).to_owned();
        Err(CudaError::NoCompiler(format!("error {compiled} of NVRTC: {log}")))
    }
}
