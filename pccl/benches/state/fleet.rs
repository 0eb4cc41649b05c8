//! Processes that sync with each other: a master, sources, and one receiver, here or on the hosts of a laboratory.

use crate::{Args, Result};
use pccl_testkit::{lab::Lab, process::Partner};
use std::process::Command;

/// The measurements of the receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Synced {
    pub(crate) seconds: f64,
    pub(crate) rx_bytes: u64,
    /// Memory that it took at most, beside what it had before.
    pub(crate) peak_kib: u64,
    /// Its processor time.
    pub(crate) cpu_seconds: f64,
    /// The bytes that came in over the interface of its host, in a laboratory.
    pub(crate) wire_bytes: u64,
}

/// The state that a receiver holds before a sync.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Old {
    /// The state of the sources, but for this number of MiB, which look like random numbers as well.
    Changed(usize),
    /// Nothing but zeros, as a peer that has just begun.
    Zeros,
}

/// One process of this program.
pub(crate) fn start(lab: Option<&Lab>, host: usize, args: &[String]) -> Result<Partner> {
    let program = std::env::current_exe()?;
    let mut command = lab.map_or_else(|| Command::new(&program), |lab| lab.command(host, &program));
    command.args(args);
    Ok(Partner::start(command)?)
}

/// See the module's documentation.
pub(crate) struct Fleet {
    /// The receiver is the last.
    peers: Vec<Partner>,
    revision: u64,
    _master: Partner,
}

impl Fleet {
    /// The receiver is on the host after those of the sources, and the master on the last one of the laboratory.
    pub(crate) fn new(lab: Option<(&Lab, usize)>, args: &Args, sources: usize) -> Result<Self> {
        let (address, master_host) =
            lab.map_or(("127.0.0.1".to_owned(), 0), |(_, hosts)| (Lab::address(hosts), hosts));
        let lab = lab.map(|(lab, _)| lab);
        let mut master = start(lab, master_host, &["--serve".to_owned(), format!("{address}:0")])?;
        let mut words = vec!["--child".to_owned(), master.listen()?, "--peers".to_owned()];
        words.extend([(sources + 1).to_string(), "--mib".to_owned(), args.mib.to_string()]);
        words.extend(["--memory-mib".to_owned(), args.memory_mib.to_string()]);
        let mut peers =
            (0..=sources).map(|host| start(lab, host, &words)).collect::<Result<Vec<Partner>>>()?;
        for peer in &mut peers {
            peer.listen()?;
        }
        Ok(Self { peers, revision: 0, _master: master })
    }

    /// One sync of a receiver that holds this before.
    pub(crate) fn sync(&mut self, old: Old) -> Result<Synced> {
        self.begin(old)?;
        self.end()
    }

    pub(crate) fn begin(&mut self, old: Old) -> Result<()> {
        self.revision += 1;
        let revision = self.revision;
        let receiver = self.peers.len() - 1;
        for (number, peer) in self.peers.iter_mut().enumerate() {
            peer.tell(&match old {
                _ if number != receiver => format!("prepare {revision} 0"),
                Old::Zeros => "prepare 0 zeros".to_owned(),
                Old::Changed(changed) => format!("prepare 0 {changed}"),
            })?;
        }
        for peer in &mut self.peers {
            peer.listen()?;
        }
        Ok(self.peers.iter_mut().try_for_each(|peer| peer.tell("sync"))?)
    }

    pub(crate) fn end(&mut self) -> Result<Synced> {
        let mut last = String::new();
        for peer in &mut self.peers {
            last = peer.listen()?;
        }
        let words: Vec<&str> = last.split(' ').collect();
        let &[seconds, rx_bytes, peak_kib, cpu_seconds, wire_bytes] = words.as_slice() else {
            return Err(format!("a peer says {last:?}").into());
        };
        Ok(Synced {
            seconds: seconds.parse()?,
            rx_bytes: rx_bytes.parse()?,
            peak_kib: peak_kib.parse()?,
            cpu_seconds: cpu_seconds.parse()?,
            wire_bytes: wire_bytes.parse()?,
        })
    }

    pub(crate) fn kill_source(&mut self) {
        drop(self.peers.remove(0));
    }
}
