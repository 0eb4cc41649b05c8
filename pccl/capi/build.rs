//! Gives the shared library the name under which programs were linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libpccl.dylib"),
        Ok("windows") => {}
        _ => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpccl.so"),
    }
}
