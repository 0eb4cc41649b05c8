//! Gives the shared library its name, with the version of its binary interface, and makes it found under that name
//! beside where cargo puts it.

use std::path::{Path, PathBuf};

/// The name that programs linked with the library ask for. The number changes when they would have to be compiled
/// again.
const SONAME: &str = "libpccl.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libpccl.dylib"),
        Ok("windows") => {}
        _ => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
            if let Err(error) = link_beside_library() {
                println!(
                    "cargo::warning=programs linked with the library where it was built need {SONAME}: {error}"
                );
            }
        }
    }
}

/// Cargo knows no second name of a library. `OUT_DIR` lies three levels below where the library will be.
#[cfg(unix)]
fn link_beside_library() -> std::io::Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let Some(directory) = out.ancestors().nth(3) else { return Err(std::io::ErrorKind::NotFound.into()) };
    let link = directory.join(SONAME);
    if std::fs::read_link(&link).is_ok_and(|target| target == Path::new("libpccl.so")) {
        return Ok(());
    }
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("libpccl.so", &link)
}

#[cfg(not(unix))]
fn link_beside_library() -> std::io::Result<()> {
    Ok(())
}
