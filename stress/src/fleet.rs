//! The processes of a run and what is done to them. Everything that is done is told to the oracle before it is done, so
//! that no consequence is heard of before its cause.

use crate::{
    authority::Authority,
    children::{Starter, Who},
    clients::{Clients, Language},
    fault::Fault,
    journal::Journal,
    links::Links,
    oracle::Oracle,
    peer::LEAVE,
    procfs::{self, Series},
    report::{Survivor, keep_longest},
};
use pccl_testkit::process::{Process, Signal};
use std::{collections::BTreeMap, io};

struct Peer {
    process: Process,
    group: u32,
    language: Language,
    series: Series,
    /// When it is to go on, while it is stopped.
    resume_us: Option<u64>,
    leaving: bool,
    killed: bool,
    closed: bool,
}

/// See the module's documentation.
pub(crate) struct Fleet {
    pub(crate) authority: Authority,
    pub(crate) links: Links,
    peers: BTreeMap<usize, Peer>,
    peer_args: Vec<String>,
    clients: Clients,
    groups: u32,
    starter: Starter,
    started: usize,
    judged: Vec<Survivor>,
}

impl Fleet {
    pub(crate) fn new(
        authority: Authority,
        links: Links,
        peer_args: Vec<String>,
        clients: Clients,
        groups: u32,
        starter: Starter,
    ) -> Self {
        Self {
            authority,
            links,
            peers: BTreeMap::new(),
            peer_args,
            clients,
            groups,
            starter,
            started: 0,
            judged: Vec::new(),
        }
    }

    /// How many peers were ever started.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Peers that run and were not asked to leave.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.list(|peer| peer.resume_us.is_none() && !peer.leaving && !peer.killed && !peer.closed)
    }

    /// Peers that were asked to leave, or killed, and are still there.
    pub(crate) fn ending(&self) -> Vec<usize> {
        self.list(|peer| peer.leaving || peer.killed || peer.closed)
    }

    /// The group of each peer.
    pub(crate) fn groups(&self) -> BTreeMap<usize, u32> {
        self.peers.iter().map(|(&number, peer)| (number, peer.group)).collect()
    }

    pub(crate) fn stopped(&self) -> Vec<usize> {
        self.list(|peer| peer.resume_us.is_some() && !peer.killed)
    }

    fn list(&self, test: impl Fn(&Peer) -> bool) -> Vec<usize> {
        self.peers.iter().filter(|(_, peer)| test(peer)).map(|(&number, _)| number).collect()
    }

    /// Does something to the run.
    pub(crate) fn apply(
        &mut self,
        fault: Fault,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        match fault {
            Fault::Spawn => return self.spawn(oracle, journal, now_us),
            Fault::Kill(number) => {
                let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
                journal.event(now_us, &format!("kill peer {number}"))?;
                oracle.killed(number, now_us);
                peer.killed = true;
                peer.process.signal(Signal::Kill)?;
            }
            Fault::Stop { peer: number, for_us } => {
                let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
                journal.event(now_us, &format!("stop peer {number} for {} ms", for_us / 1000))?;
                oracle.stopped(number, now_us);
                peer.resume_us = Some(now_us + for_us);
                peer.process.signal(Signal::Stop)?;
            }
            Fault::Leave(number) => self.dismiss(number, oracle, journal, now_us)?,
            Fault::Link(link) => {
                if let Some(identity) = oracle.identity(link.peer) {
                    self.links.apply(link, identity, oracle, journal, now_us)?;
                }
            }
            Fault::Master { down_us } => self.authority.kill(down_us, oracle, journal, now_us)?,
            Fault::MasterStop { for_us } => self.authority.stop(for_us, oracle, journal, now_us)?,
        }
        Ok(())
    }

    fn spawn(&mut self, oracle: &mut Oracle, journal: &mut Journal, now_us: u64) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let group = self.smallest_group();
        oracle.spawned(number, group, now_us);
        let mut args = self.peer_args.clone();
        let mut arg = |name: &str, value: String| args.extend([name.to_owned(), value]);
        arg("--index", number.to_string());
        arg("--group", group.to_string());
        if let Some(place) = self.links.open(number)? {
            arg("--bind", place.bind.to_string());
            arg("--shown", place.shown.to_string());
            arg("--data-port", place.ports.0.to_string());
            arg("--state-port", place.ports.1.to_string());
        }
        let count = |language| {
            self.peers.values().filter(|p| p.language == language && !p.killed && !p.leaving).count()
        };
        let language = self.clients.next(count);
        let (program, log) = (self.clients.program(language)?, journal.peer_log(number));
        let process = self.starter.start(Who::Peer(number), program, &args, &log)?;
        let pid = process.pid();
        journal
            .event(now_us, &format!("start peer {number} of group {group} in {language:?}, process {pid}"))?;
        let series = Series::default();
        let peer = Peer {
            process,
            group,
            language,
            series,
            resume_us: None,
            leaving: false,
            killed: false,
            closed: false,
        };
        self.peers.insert(number, peer);
        Ok(())
    }

    fn smallest_group(&self) -> u32 {
        let size = |group: &u32| {
            self.peers.values().filter(|p| p.group == *group && !p.killed && !p.leaving).count()
        };
        (0..self.groups).min_by_key(size).unwrap_or(0)
    }

    fn dismiss(
        &mut self,
        number: usize,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        let Some(peer) = self.peers.get_mut(&number).filter(|peer| !peer.leaving && !peer.killed) else {
            return Ok(());
        };
        journal.event(now_us, &format!("ask peer {number} to leave"))?;
        oracle.leaving(number, now_us);
        peer.leaving = true;
        drop(peer.process.tell(LEAVE));
        Ok(())
    }

    /// Asks everybody to leave.
    pub(crate) fn dismiss_all(
        &mut self,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        let all: Vec<usize> = self.peers.keys().copied().collect();
        all.into_iter().try_for_each(|number| self.dismiss(number, oracle, journal, now_us))
    }

    /// Lets those go on whose time has come.
    pub(crate) fn resume_due(
        &mut self,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        for (&number, peer) in &mut self.peers {
            if !peer.killed && peer.resume_us.is_some_and(|at| at <= now_us) {
                journal.event(now_us, &format!("resume peer {number}"))?;
                oracle.resumed(number, now_us);
                peer.resume_us = None;
                peer.process.signal(Signal::Continue)?;
            }
        }
        Ok(())
    }

    /// Lets everybody go on.
    pub(crate) fn resume_all(
        &mut self,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        for peer in self.peers.values_mut().filter(|peer| peer.resume_us.is_some()) {
            peer.resume_us = Some(now_us);
        }
        self.resume_due(oracle, journal, now_us)
    }

    /// A process has closed its output.
    pub(crate) fn closed(&mut self, who: Who, oracle: &mut Oracle, now_us: u64) {
        match who {
            Who::Master(place) => self.authority.closed(place, oracle, now_us),
            Who::Peer(number) => {
                if let Some(peer) = self.peers.get_mut(&number) {
                    peer.closed = true;
                }
            }
        }
    }

    /// Notices processes that have ended; each only after its last line has been taken in.
    pub(crate) fn reap(&mut self, oracle: &mut Oracle, journal: &mut Journal, now_us: u64) -> io::Result<()> {
        let mut ended = Vec::new();
        for (&number, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.closed) {
            if let Some(status) = peer.process.ended()? {
                journal.event(now_us, &format!("peer {number} ended: {status}"))?;
                oracle.exited(number, status.success(), &status.to_string(), now_us);
                ended.push(number);
            }
        }
        for number in ended {
            journal.peer_ended(number);
            self.links.close(number);
            if let Some(peer) = self.peers.remove(&number) {
                self.judge(format!("peer {number}"), &peer.series);
            }
        }
        Ok(())
    }

    /// Looks at all processes. One that has just ended is none of the survivors.
    pub(crate) fn sample(&mut self, now_us: u64) {
        self.authority.sample(now_us);
        for peer in self.peers.values_mut() {
            if let Ok(sample) = procfs::sample(peer.process.pid(), now_us) {
                peer.series.push(sample);
            }
        }
    }

    fn judge(&mut self, name: String, series: &Series) {
        self.judged.extend(Survivor::of(name, series));
        keep_longest(&mut self.judged);
    }

    /// The processes that have lived long enough to be judged.
    pub(crate) fn survivors(&self) -> Vec<Survivor> {
        let peers = self.peers.iter();
        let peers = peers.filter_map(|(number, peer)| Survivor::of(format!("peer {number}"), &peer.series));
        let masters = self.authority.survivors().into_iter();
        let mut all: Vec<Survivor> = masters.chain(self.judged.clone()).chain(peers).collect();
        keep_longest(&mut all);
        all
    }

    /// Writes where every thread of every process is: what a stall looks like from outside.
    pub(crate) fn write_threads(&self, journal: &mut Journal, now_us: u64) -> io::Result<()> {
        let masters = self.authority.processes().into_iter();
        let peers = self.peers.iter().map(|(number, peer)| (format!("peer {number}"), peer.process.pid()));
        for (name, pid) in masters.chain(peers) {
            for thread in procfs::threads(pid) {
                journal.event(now_us, &format!("thread of {name}: {thread}"))?;
            }
        }
        Ok(())
    }

    /// Ends all peers that are still there.
    pub(crate) fn kill_all(&mut self) {
        for peer in self.peers.values_mut() {
            // Fails only for a process that has ended, and then it is what was wanted.
            drop(peer.process.signal(Signal::Kill));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // A stopped process is killed as well; dropping the handles waits for all of them.
        self.kill_all();
    }
}
