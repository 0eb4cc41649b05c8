//! The remedies, in sentences.

use pccl_protocol::limits::DEFAULT_MASTER_PORT;
use tinysockets::{
    dial::DialError,
    preamble::{Refusal, Role},
};

/// A rule that lets this port of the machine in question be reached from `from`, and how others write it.
pub(super) fn open(port: u16, from: Option<&str>) -> String {
    let (saddr, who) = match from {
        Some(from) if from.contains(':') => (format!("ip6 saddr {from} "), format!("from {from} ")),
        Some(from) => (format!("ip saddr {from} "), format!("from {from} ")),
        None => (String::new(), "from all machines of the run ".to_owned()),
    };
    format!(
        "let TCP port {port} in {who}(`nft add rule inet filter input {saddr}tcp dport {port} accept`, \
         or the firewall of its provider)"
    )
}

/// The remedy when the master is not reached; `me` is the address of this machine on the way to it.
pub(super) fn of_master(error: &DialError, me: Option<&str>) -> String {
    match error.principal() {
        DialError::Unresolved { target, .. } => format!(
            "correct the name, put its name servers right (`getent hosts {}`), or give the address of the master in \
             digits",
            target.host
        ),
        DialError::ConnectionRefused { target } => format!(
            "start pccl-master on that machine, or give its port (default {DEFAULT_MASTER_PORT}). Without a run key it \
             listens for its own machine only, unless it has --insecure; a firewall that rejects looks the same: {}",
            open(target.port, me)
        ),
        DialError::TimedOut { target, .. } => format!(
            "packets are dropped on the way, or the machine is down. On {}: {}; and let this machine out to that port",
            target.host,
            open(target.port, me)
        ),
        DialError::Refused { reason, .. } => of_refusal(*reason).to_owned(),
        DialError::Version { .. } => "install programs of the same release on both machines".to_owned(),
        DialError::Foreign { .. } | DialError::NoAnswer { .. } => format!(
            "give the port of pccl-master (default {DEFAULT_MASTER_PORT}): another program, or a proxy, listens there"
        ),
        DialError::Io { target, .. } | DialError::Several { target, .. } => {
            format!(
                "look at the network of this machine: `ip route get {}` says which way it would take",
                target.host
            )
        }
    }
}

fn of_refusal(reason: Refusal) -> &'static str {
    match reason {
        Refusal::KeyWanted => "get the run key from who started the master: PCCL_RUN_KEY, --key-file",
        Refusal::NoKey => {
            "start the master with the key (--key-file), or take it away here (PCCL_RUN_KEY, address): one without \
             cannot prove that it is the one that is meant"
        }
        Refusal::WrongKey => {
            "compare the keys, and the names of the run: those of the run are in the file, in the environment, or in \
             the command (--run) with which the master was started"
        }
        Refusal::WrongRole
        | Refusal::WrongDestination
        | Refusal::WrongRun
        | Refusal::WrongTicket
        | Refusal::NotExpected => "give the port of the master: that is one of a peer",
        Refusal::UnsupportedVersion | Refusal::UnsupportedSecurity => {
            "install programs of the same release on both machines"
        }
        Refusal::Full => "wait until it has room: too many connections are being made to it",
        Refusal::ShuttingDown => "start the master again: it is about to end",
    }
}

/// The purpose of a port of a peer.
pub(super) const fn what_for(role: Role) -> &'static str {
    match role {
        Role::State | Role::StateBack => "port for state",
        Role::Relay => "relay",
        Role::Data | Role::DataBack | Role::Probe | Role::ProbeBack | Role::Check | Role::Control => {
            "port for tensors"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_port_and_source() {
        assert!(open(7, Some("10.0.0.1")).contains("ip saddr 10.0.0.1 tcp dport 7 accept"));
        assert!(open(7, Some("::1")).contains("ip6 saddr ::1 tcp dport 7 accept"));
        assert!(open(7, None).contains("input tcp dport 7 accept"));
    }

    #[test]
    fn every_refusal_has_a_remedy() {
        for refusal in Refusal::ALL {
            assert!(!of_refusal(refusal).is_empty(), "{refusal}");
        }
    }
}
