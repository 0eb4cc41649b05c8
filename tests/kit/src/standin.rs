//! A device of CUDA where there is none: the driver and the compiler of `cuda/standin/`, built and loaded.
//!
//! A caller that looks for `libcuda.so` afterwards finds the one that is loaded, by its name. A child process finds it
//! by `LD_LIBRARY_PATH`. Nothing of this is in the library.

use parking_lot::{Mutex, MutexGuard};
use std::{
    ffi::{CString, c_void},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The counts of the stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Calls that may fail.
    Calls = 0,
    /// Kernels that have run.
    Kernels = 1,
    /// Bytes copied from a device.
    BytesToHost = 2,
    /// Bytes copied to a device.
    BytesToDevice = 3,
    /// Bytes of device memory in use.
    DeviceBytes = 4,
    /// Bytes of pinned memory in use.
    PinnedBytes = 5,
    /// Streams.
    Streams = 6,
    /// Events.
    Events = 7,
    /// Operations that are queued on streams and have not run.
    Queued = 8,
    /// Modules of kernels.
    Modules = 9,
}

/// The stand-in, for one test at a time: what it counts, and what it does wrong.
#[derive(Debug)]
pub struct Standin {
    library: usize,
    _alone: MutexGuard<'static, ()>,
}

/// The directory with the stand-in's `libcuda.so` and `libnvrtc.so`, which are built if they are not there yet.
///
/// # Errors
/// In words: what the compiler says, or that there is none.
pub fn directory() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| build().map_err(|error| format!("the stand-in driver: {error}"))).clone()
}

fn build() -> io::Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cuda/standin");
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().find(|it| it.join("deps").is_dir() || it.join("build").is_dir());
    let root = target.map_or_else(std::env::temp_dir, Path::to_path_buf).join("standin");
    let files = ["driver.cpp", "kernels.cpp", "kernels.h", "shim.cpp", "shim.h", "nvrtc.cpp"].into_iter();
    let files = files.chain(["../kernels/hash.cu", "../kernels/quantise.cu"]);
    let mut newest = None;
    for file in files {
        newest = newest.max(Some(fs::metadata(sources.join(file))?.modified()?));
    }
    let is_new = |file: &str| fs::metadata(root.join(file)).and_then(|it| it.modified()).ok() >= newest;
    if is_new("libcuda.so") && is_new("libnvrtc.so") {
        return Ok(root);
    }
    fs::create_dir_all(&root)?;
    let compile = |name: &str, sources_of_it: &[&str]| {
        // Other processes may build it at the same time: each writes its own file, and the last name stays.
        let own = root.join(format!("{name}.{}", std::process::id()));
        let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
        compiler.args(["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden"]);
        compiler.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(&own);
        compiler.args(sources_of_it.iter().map(|file| sources.join(file)));
        let output = compiler.output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        fs::rename(own, root.join(name))
    };
    compile("libnvrtc.so", &["nvrtc.cpp"])?;
    compile("libcuda.so", &["driver.cpp", "kernels.cpp", "shim.cpp"])?;
    Ok(root)
}

impl Standin {
    /// Loads it into this process, before anybody has looked for a driver, and waits until no other test has it.
    ///
    /// # Errors
    /// In words, if it cannot be built or loaded.
    pub fn load() -> Result<Self, String> {
        static ALONE: Mutex<()> = Mutex::new(());
        static LIBRARY: OnceLock<Result<usize, String>> = OnceLock::new();
        let alone = ALONE.lock();
        let directory = directory()?;
        let load = |name: &str| {
            let path = CString::new(directory.join(name).into_os_string().into_encoded_bytes())
                .map_err(|error| error.to_string())?;
            // SAFETY: the path ends with a zero; the library is the stand-in, which does nothing when it is loaded.
            match unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) } as usize {
                0 => Err(format!("{} cannot be loaded", directory.join(name).display())),
                library => Ok(library),
            }
        };
        let begin = || {
            // Tests leave nothing in the caches of whoever runs them.
            // SAFETY: other tests of this process wait for this one, before they look at anything.
            unsafe { std::env::set_var("PCCL_KERNEL_CACHE", "") };
            load("libnvrtc.so").and_then(|_| load("libcuda.so"))
        };
        let library = LIBRARY.get_or_init(begin).clone()?;
        let standin = Self { library, _alone: alone };
        standin.fail(0, 0);
        standin.hold(0);
        standin.slow(0);
        standin.limit(1 << 40);
        Ok(standin)
    }

    /// The call with this number from now on fails with this error of the driver; 0: none does. Ends what an earlier
    /// error did to the device.
    pub fn fail(&self, number: u64, error: u32) {
        // SAFETY: the function with this name has this type.
        let fail: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(self.function("standin_fail")) };
        fail(number, error);
    }

    /// The call with this number from now on waits until this is called with 0; others go on meanwhile.
    pub fn hold(&self, number: u64) {
        // SAFETY: the function with this name has this type.
        let hold: extern "C" fn(u64) = unsafe { std::mem::transmute(self.function("standin_hold")) };
        hold(number);
    }

    /// Each call takes this number of milliseconds from now on, while others go on.
    pub fn slow(&self, milliseconds: u64) {
        // SAFETY: the function with this name has this type.
        let slow: extern "C" fn(u64) = unsafe { std::mem::transmute(self.function("standin_slow")) };
        slow(milliseconds);
    }

    /// Whether a call waits.
    pub fn holds(&self) -> bool {
        // SAFETY: the function with this name has this type.
        let holds: extern "C" fn() -> bool = unsafe { std::mem::transmute(self.function("standin_holds")) };
        holds()
    }

    /// The device has this number of bytes from now on.
    pub fn limit(&self, bytes: u64) {
        // SAFETY: the function with this name has this type.
        let limit: extern "C" fn(u64) = unsafe { std::mem::transmute(self.function("standin_limit")) };
        limit(bytes);
    }

    /// Its counts.
    pub fn count(&self, what: Count) -> u64 {
        // SAFETY: the function with this name has this type.
        let count: extern "C" fn(u32) -> u64 = unsafe { std::mem::transmute(self.function("standin_count")) };
        count(what as u32)
    }

    fn function(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).expect("a name without zeros");
        // SAFETY: the library is loaded and stays, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.library as *mut c_void, text.as_ptr()) };
        assert!(!found.is_null(), "the stand-in has no function {name}");
        found
    }

    /// New device memory with this content, as a program has it: its address. It is never freed.
    pub fn device_memory(&self, bytes: usize) -> u64 {
        // SAFETY: the function with this name has this type.
        let new: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(self.function("standin_new")) };
        new(bytes as u64)
    }

    /// Frees what [`Standin::device_memory`] has given.
    pub fn free(&self, address: u64) {
        // SAFETY: the function with this name has this type.
        let free: extern "C" fn(u64) = unsafe { std::mem::transmute(self.function("standin_free")) };
        free(address);
    }

    /// Writes device memory at once, past all streams.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: the function with this name has this type, and reads as many bytes.
        let put: extern "C" fn(u64, *const u8, u64) =
            unsafe { std::mem::transmute(self.function("standin_put")) };
        put(address, bytes.as_ptr(), bytes.len() as u64);
    }

    /// Reads device memory at once, past all streams.
    pub fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        // SAFETY: the function with this name has this type, and fills as many bytes.
        let get: extern "C" fn(u64, *mut u8, u64) =
            unsafe { std::mem::transmute(self.function("standin_get")) };
        let mut content = vec![0; bytes];
        get(address, content.as_mut_ptr(), bytes as u64);
        content
    }

    /// A new stream of the program, by its handle.
    pub fn stream(&self) -> u64 {
        // SAFETY: the function with this name has this type.
        let new: extern "C" fn() -> u64 = unsafe { std::mem::transmute(self.function("standin_stream")) };
        new()
    }

    /// Does what is queued on a stream of the program, and what that waits for.
    pub fn settle(&self, stream: u64) {
        // SAFETY: the function with this name has this type.
        let settle: extern "C" fn(u64) = unsafe { std::mem::transmute(self.function("standin_settle")) };
        settle(stream);
    }

    /// Queues a write of device memory on a stream of the program: it is not there before the stream gets to it.
    pub fn put_later(&self, stream: u64, address: u64, bytes: &[u8]) {
        // SAFETY: the function with this name has this type, and copies as many bytes.
        let put: extern "C" fn(u64, u64, *const u8, u64) =
            unsafe { std::mem::transmute(self.function("standin_put_later")) };
        put(stream, address, bytes.as_ptr(), bytes.len() as u64);
    }
}
