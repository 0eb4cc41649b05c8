//! Three hosts in network namespaces behind one router: one that others can dial, one behind a firewall, and one behind
//! an emulated NAT that gives each connection another port. Needs root, and the programs `ip` and `nft`.

use pccl::RunKey;
use std::{
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::peer::give_key;

/// The host that others can dial.
pub(crate) const OPEN: usize = 0;
/// The one behind a firewall: nobody begins a connection to it.
pub(crate) const WALLED: usize = 1;
/// The one behind NAT: others see the router, and other ports.
pub(crate) const HIDDEN: usize = 2;

/// See the module's documentation. Taken away when this is dropped.
#[derive(Debug)]
pub(crate) struct Networks {
    prefix: String,
}

pub(crate) fn run(program: &str, arguments: &str) -> Result<(), String> {
    let failed = |text: String| format!("{program} {arguments}: {text}");
    let Output { status, stderr, .. } = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&stderr).trim().to_owned())) }
}

impl Networks {
    /// Makes them. An error says what this machine does not have.
    pub(crate) fn up() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The name of a namespace is that of a file, and that of a device is short.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let networks = Self { prefix: format!("pe{}x{number}", std::process::id() % 100_000) };
        run("nft", "--version")?;
        networks.make().map(|()| networks)
    }

    fn make(&self) -> Result<(), String> {
        let router = &self.space("r");
        run("ip", &format!("netns add {router}"))?;
        self.in_space("r", "sysctl -qw net.ipv4.ip_forward=1")?;
        for host in [OPEN, WALLED, HIDDEN] {
            let (name, address) = (host.to_string(), Self::address(host));
            let space = &self.space(&name);
            run("ip", &format!("netns add {space}"))?;
            run("ip", &format!("-n {router} link add r{host} type veth peer name eth0 netns {space}"))?;
            run("ip", &format!("-n {router} addr add 10.91.{host}.254/24 dev r{host}"))?;
            run("ip", &format!("-n {router} link set r{host} up"))?;
            run("ip", &format!("-n {space} addr add {address}/24 dev eth0"))?;
            run("ip", &format!("-n {space} link set eth0 up"))?;
            run("ip", &format!("-n {space} link set lo up"))?;
            run("ip", &format!("-n {space} route add default via 10.91.{host}.254"))?;
        }
        for rule in [
            "add table ip e2e",
            "add chain ip e2e forward { type filter hook forward priority 0 ; }",
            "add chain ip e2e out { type nat hook postrouting priority 100 ; }",
            &format!("add rule ip e2e out ip saddr {} masquerade random", Self::address(HIDDEN)),
            &format!("add rule ip e2e forward ip daddr {} ct state new drop", Self::address(WALLED)),
            &format!("add rule ip e2e forward ip daddr {} ct state new drop", Self::address(HIDDEN)),
        ] {
            self.in_space("r", &format!("nft {rule}"))?;
        }
        Ok(())
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn in_space(&self, name: &str, command: &str) -> Result<(), String> {
        run("ip", &format!("netns exec {} {command}", self.space(name)))
    }

    pub(crate) fn address(host: usize) -> String {
        format!("10.91.{host}.1")
    }

    /// The peer program on a host, with this key or none.
    pub(crate) fn command(&self, host: usize, key: Option<&RunKey>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(&host.to_string()), env!("CARGO_BIN_EXE_pccl-test-peer")]);
        give_key(&mut command, key);
        command
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        // The processes that run in them have been ended before.
        for name in ["r", "0", "1", "2"] {
            let _ = run("ip", &format!("netns del {}", self.space(name)));
        }
    }
}
