//! Peers of formed groups that are threads of this process, for the tests of such groups.

use crate::together::together;
use pccl::{Communicator, Master, MasterConfig, Member, World};
use std::time::Duration;

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        peer_timeout: PATIENCE,
        edge_timeout: PATIENCE,
        ..MasterConfig::default()
    };
    Master::launch(config).expect("master starts")
}

pub(crate) fn peer(master: &Master, name: &str) -> Communicator {
    let builder = Communicator::builder(&master.local_addr().to_string()).first_ports(0, 0);
    let comm = builder.name(name).formed_groups(true).build().expect("valid settings");
    comm.connect().expect("connect");
    comm
}

pub(crate) fn names(list: &[&str]) -> Vec<Member> {
    list.iter().map(|name| Member::from(*name)).collect()
}

/// All of these call at the same time.
pub(crate) fn all<T: Send>(comms: &[&Communicator], call: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    together(comms, |_, comm| call(comm))
}

/// All of these form a group of the peers with these names.
pub(crate) fn form(comms: &[&Communicator], uuid: u128, list: &[&str]) -> Vec<World> {
    let list = names(list);
    let worlds = all(comms, |comm| comm.form_group_within(uuid, &list, PATIENCE).expect("formed"));
    assert!(worlds.iter().all(|world| world.group_size == list.len()));
    worlds
}
