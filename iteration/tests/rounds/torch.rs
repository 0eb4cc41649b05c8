//! PyTorch's side, if it is installed.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

fn python() -> Option<String> {
    let python = std::env::var("PCCL_TORCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python)
        .args(["-c", "import torch.distributed as d; d.TCPStore"])
        .stderr(Stdio::null())
        .status();
    let found = probe.is_ok_and(|status| status.success());
    if !found {
        println!("skipped: {python} has no PyTorch");
    }
    found.then_some(python)
}

fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "rounds", name].iter().collect()
}

/// The answers that every command of PyTorch's client gets.
pub(crate) fn commands(arguments: &[&str]) -> Option<String> {
    let output = Command::new(python()?)
        .arg(script("torch_commands.py"))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap())
}

/// A server of PyTorch.
pub(crate) struct Server {
    pub(crate) address: String,
    process: Child,
}

impl Server {
    pub(crate) fn start(backend: &str) -> Option<Self> {
        let mut process = Command::new(python()?)
            .arg(script("torch_server.py"))
            .arg(backend)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Some(Self { address: format!("127.0.0.1:{}", port.trim()), process })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
