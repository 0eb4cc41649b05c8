//! Programs whose buffers are on a device, which the stand-in for a driver plays.

use crate::{
    build::{Language, compile},
    programs::{Program, master, unique},
};
use pccl_testkit::standin;
use std::path::Path;

#[test]
fn all_collectives_in_c_and_cpp_take_buffers_on_a_device() {
    let driver = standin::directory().expect("the stand-in");
    for language in [Language::C99, Language::Cpp17] {
        let name = format!("devices-{language:?}-{}", unique());
        let Some(program) = compile(language, "tests/abi/c/devices.c", &name) else { continue };
        let (_master, port) = master();
        // The first one has its buffers on the host.
        let start = |index: usize| {
            let arguments = [port.clone(), "all".to_owned(), "3".to_owned(), index.to_string()];
            let variables = [("LD_LIBRARY_PATH", driver.as_path()), ("PCCL_KERNEL_CACHE", Path::new(""))];
            Program::start_with(&program, &arguments, &variables)
        };
        let mut peers: Vec<Program> = (0..3).map(start).collect();
        for peer in &mut peers {
            peer.expect("joined");
        }
        for peer in &mut peers {
            peer.go();
        }
        for peer in &mut peers {
            peer.finish();
        }
    }
}
