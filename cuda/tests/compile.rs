//! The kernels through the real compiler, where its package can be fetched.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const ARCHITECTURES: [u32; 8] = [70, 75, 80, 86, 89, 90, 100, 120];
/// The first and the last of them: `PCCL_TEST_FULL=1` takes all.
const FEW: [u32; 2] = [70, 120];
const SOURCES: [&str; 2] = ["hash.cu", "quantise.cu"];
const COMPILER: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";
const ASSEMBLER: &str = "nvidia-cuda-nvcc-cu12==12.9.86";

/// Compiles the source with the library for all architectures, as the library does; prints a line for each, and leaves
/// the images in a directory.
const SCRIPT: &str = r#"
import ctypes, sys
nvrtc = ctypes.CDLL(sys.argv[1])
source = open(sys.argv[2], "rb").read()
for architecture in sys.argv[4:]:
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"hash.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_" + architecture.encode())
    result = nvrtc.nvrtcCompileProgram(program, 1, options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    if result != 0:
        sys.exit(f"{architecture}: {log.value.decode()}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    assert size.value > 1000
    image = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, image) == 0
    with open(f"{sys.argv[3]}/{architecture}.ptx", "wb") as file:
        file.write(image.value)
    print("compiled", architecture)
"#;

/// A file of a package, which is fetched once; `None` where it cannot be.
fn fetched(package: &str, file: &str) -> Option<PathBuf> {
    if env::consts::ARCH != "x86_64" {
        return None;
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package);
    let file = root.join(file);
    if !file.is_file() {
        let own = root.with_extension(std::process::id().to_string());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&own).arg(package);
        let is_there = pip.output().is_ok_and(|output| output.status.success());
        let _ = is_there && fs::rename(&own, &root).is_ok();
        let _ = fs::remove_dir_all(&own);
    }
    file.is_file().then_some(file)
}

fn architectures() -> &'static [u32] {
    let is_full = env::var_os("PCCL_TEST_FULL").is_some_and(|value| value != "0");
    if is_full { &ARCHITECTURES } else { &FEW }
}

#[test]
fn the_kernels_compile_and_assemble_for_all_devices() {
    let Some(library) = fetched(COMPILER, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12") else {
        return println!("skipped: the package {COMPILER} cannot be fetched");
    };
    let images = env::temp_dir().join(format!("pccl-images-{}", std::process::id()));
    fs::create_dir_all(&images).expect("a directory");
    for source in SOURCES {
        compile(&library, source, &images);
    }
    fs::remove_dir_all(images).expect("removed");
}

fn compile(library: &Path, source: &str, images: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(source);
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).args([library, &source, images]);
    python.args(architectures().iter().map(|it| it.to_string()));
    let output = python.output().expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let compiled = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(compiled, architectures().len());
    println!("{} compiled for {:?}", source.display(), architectures());
    for architecture in architectures() {
        let image = fs::read_to_string(images.join(format!("{architecture}.ptx"))).expect("an image");
        // Each operation is rounded by itself, to nearest, and subnormal numbers are what they are.
        for fused in ["fma.", "mad.f", ".ftz", "div.approx", "div.full", "cvt.rz.f32"] {
            assert!(!image.contains(fused), "compute_{architecture}: {fused} in {}", source.display());
        }
    }
    match fetched(ASSEMBLER, "nvidia/cuda_nvcc/bin/ptxas") {
        Some(assembler) => architectures().iter().for_each(|it| assemble(&assembler, images, *it)),
        None => println!("skipped: the package {ASSEMBLER} cannot be fetched"),
    }
}

/// Assembles an image for its architecture, without a warning: what the driver does when it loads it.
fn assemble(assembler: &Path, images: &Path, architecture: u32) {
    let mut ptxas = Command::new(assembler);
    ptxas.args(["--warning-as-error", "--warn-on-spills", "--verbose", "--output-file"]);
    ptxas.arg(images.join(format!("{architecture}.cubin"))).arg(images.join(format!("{architecture}.ptx")));
    ptxas.arg(format!("--gpu-name=sm_{architecture}"));
    let output = ptxas.output().expect("the assembler");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "sm_{architecture}: {said}");
    // One line of each kernel.
    let used = said.lines().filter(|line| line.contains("Used"));
    let registers = used.filter_map(|line| line.split(" registers").next()?.rsplit(' ').next());
    let registers: Vec<u32> = registers.filter_map(|it| it.parse().ok()).collect();
    println!("sm_{architecture}: {} kernels, registers {:?}", registers.len(), registers.iter().max());
}
