//! The kernels through the real compiler, where its package can be fetched.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const ARCHITECTURES: [u32; 8] = [70, 75, 80, 86, 89, 90, 100, 120];
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";

/// Compiles the source with the library for all architectures; prints a line for each.
const SCRIPT: &str = r#"
import ctypes, sys
nvrtc = ctypes.CDLL(sys.argv[1])
source = open(sys.argv[2], "rb").read()
for architecture in sys.argv[3:]:
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"hash.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_" + architecture.encode())
    result = nvrtc.nvrtcCompileProgram(program, 1, options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    if result != 0:
        sys.exit(f"sm_{architecture}: {log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    assert size.value > 1000
    print("compiled", architecture)
"#;

/// The library of the package, which is fetched once; `None` where it cannot be.
fn nvrtc() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc");
    let library = root.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if !library.is_file() {
        let own = root.with_extension(std::process::id().to_string());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&own).arg(PACKAGE);
        let is_there = pip.output().is_ok_and(|output| output.status.success());
        let _ = is_there && fs::rename(&own, &root).is_ok();
        let _ = fs::remove_dir_all(&own);
    }
    library.is_file().then_some(library)
}

#[test]
fn the_kernels_compile_for_all_devices() {
    let Some(library) = nvrtc().filter(|_| env::consts::ARCH == "x86_64") else {
        return println!("skipped: the package {PACKAGE} cannot be fetched");
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/hash.cu");
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(library).arg(source).args(ARCHITECTURES.map(|it| it.to_string()));
    let output = python.output().expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let compiled = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(compiled, ARCHITECTURES.len());
    println!("compiled for {ARCHITECTURES:?}");
}
