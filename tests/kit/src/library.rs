//! libpccl and pccl-master, as tests and the stress run link and start them.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A test program that is there only if those of the whole workspace were built.
const OF_THE_WORKSPACE: &str = "floods-";

/// Builds `libpccl.so`, `libpccl.a` and `pccl-master` in the workspace at `root`, in the profile of the calling
/// program, and returns the directory in which they are. The lines of cargo go to stderr.
///
/// # Errors
/// They are not built.
pub fn build(root: &Path) -> io::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--profile", if cfg!(debug_assertions) { "test" } else { "release" }]);
    command.args(["--message-format", "json"]).args(packages()?);
    env::vars_os()
        .filter(|(name, _)| is_of_a_package(name))
        .for_each(|(name, _)| _ = command.env_remove(name));
    let output = command.current_dir(root).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(io::Error::other(format!("libpccl is not built, for the reasons above: {text}")));
    }
    let file = text.split('"').map(Path::new).find(|part| part.ends_with("libpccl.so") && part.is_absolute());
    let directory = file.and_then(Path::parent).map(Path::to_owned);
    directory.ok_or_else(|| io::Error::other("cargo names no libpccl.so"))
}

/// Whether cargo sets this variable for a program of a package that it runs. There are build scripts that run again
/// when one of these has changed, and then all is built again that is built of their crates.
fn is_of_a_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let begins = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "CARGO_PRIMARY_",
        "CARGO_TARGET_TMPDIR",
    ];
    name == "OUT_DIR" || begins.iter().any(|begin| name.starts_with(begin))
}

/// The packages that cargo is to build. The features of a dependency are those that all packages of one call of cargo
/// want: so in a build directory of the whole workspace everything is there already if the whole workspace is named,
/// and else would be built once more.
fn packages() -> io::Result<&'static [&'static str]> {
    let own = env::current_exe()?;
    let directory = own.parent().unwrap_or(&own);
    let programs = if directory.ends_with("deps") { directory.to_owned() } else { directory.join("deps") };
    let has_all = fs::read_dir(programs).is_ok_and(|mut entries| {
        entries
            .any(|entry| entry.is_ok_and(|it| it.file_name().to_string_lossy().starts_with(OF_THE_WORKSPACE)))
    });
    Ok(if has_all {
        &["--workspace", "--lib", "--bin", "pccl-master", "--tests"]
    } else {
        &["-p", "pccl-capi", "-p", "pccl-master"]
    })
}
