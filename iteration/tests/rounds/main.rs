//! Members that are processes, killed and stopped at any time, over the server of this crate and over PyTorch's
//! TCPStore.
//!
//! `PCCL_ROUNDS` sets how many iterations there are (30 unless set), `PCCL_TORCH_PYTHON` a Python that has PyTorch;
//! what needs it is skipped without.

mod fleet;
mod torch;

use pccl_iteration::{ServerConfig, Store, StoreServer, TcpStoreClient};
use std::time::{Duration, Instant};

fn server() -> StoreServer {
    StoreServer::launch(ServerConfig { listen: "127.0.0.1:0".into(), ..ServerConfig::default() }).unwrap()
}

/// Iterations of a run.
fn rounds() -> u64 {
    std::env::var("PCCL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

/// The process of a member: the same program, told by its environment what to do.
#[test]
fn member() {
    if let Ok(order) = std::env::var(fleet::ORDER) {
        fleet::run_member(&order);
    }
}

#[test]
fn members_are_killed_and_stopped_over_our_server() {
    let server = server();
    fleet::survive(&server.local_addr().to_string(), rounds(), 1);
}

#[test]
fn members_are_killed_and_stopped_over_torch_libuv() {
    let Some(server) = torch::Server::start("libuv") else { return };
    fleet::survive(&server.address, rounds(), 2);
}

#[test]
fn members_are_killed_and_stopped_over_torch_legacy() {
    let Some(server) = torch::Server::start("legacy") else { return };
    fleet::survive(&server.address, rounds(), 3);
}

/// One call for many keys of which some are missing.
fn look_for_many_keys(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let client = TcpStoreClient::connect(address, deadline).unwrap();
    let keys: Vec<String> = (0..3000).map(|i| format!("key{i}")).collect();
    for key in keys.iter().step_by(7) {
        client.set(key, key.as_bytes(), deadline).unwrap();
    }
    let values = client.get_all(&keys, deadline).unwrap();
    for (i, (key, value)) in keys.iter().zip(values).enumerate() {
        assert_eq!(value, (i % 7 == 0).then(|| key.as_bytes().to_vec()), "{key}");
    }
}

#[test]
fn many_keys_are_looked_for_over_torch() {
    for backend in ["libuv", "legacy"] {
        let Some(server) = torch::Server::start(backend) else { return };
        look_for_many_keys(&server.address);
    }
}

#[test]
fn every_command_of_torch_gets_the_answer_of_torch() {
    let Some(theirs) = torch::commands(&["libuv"]) else { return };
    let server = server();
    let ours = torch::commands(&["ours", &server.local_addr().port().to_string()]).unwrap();
    assert!(theirs.lines().count() > 30, "{theirs}");
    assert_eq!(ours, theirs);
}
