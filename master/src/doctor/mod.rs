//! The doctor: whether this machine could take part in the run of a master, and if not, which rule to open where or
//! what to change. It needs no training, joins nothing, and no peer of a run that is up hears of it.
//!
//! It does what a peer does that registers, up to the registration: finds the master, proves the run key, listens on
//! the ports that a peer would have, and asks the master whether it reaches them ([`pccl_protocol::Examine`]). Then it
//! tries the ports of all peers that are there, as those do with each other, and measures the way to a few of them.
//!
//! Its modules in the order of what it does: `master`, `ports`, `path`, `peers`; `remedy` and `report` are for all.

mod master;
mod path;
mod peers;
mod ports;
mod remedy;
mod report;

pub use report::{Finding, Health, Report};

use master::Way;
use pccl_protocol::limits;
use ports::{Answer, Asked, Listening};
use std::{collections::VecDeque, net::IpAddr, time::Duration};
use tinysockets::{
    address::HostPort,
    key::{RunKey, RunName},
};

/// The settings that the doctor goes by: those of the peer that is to run here.
#[derive(Debug, Clone)]
pub struct Patient {
    /// Address of the master: `host:port`, or `pccl://host:port/name#key`; of several masters `host:port,host:port`.
    pub master: String,
    /// The run key. Without one that of the address counts, or that of the environment.
    pub run_key: Option<RunKey>,
    /// The name of the run. Without one that of the address counts, or that of the environment.
    pub run_name: Option<RunName>,
    /// Host under which others are to reach this machine. Default: the address from which the master sees it come.
    pub advertised_host: Option<String>,
    /// Address that the listeners bind to. Default: all addresses of the machine.
    pub bind: Option<IpAddr>,
    /// First port that the data listener tries; it goes up from there.
    pub first_p2p_port: u16,
    /// First port that the shared-state listener tries; it goes up from there.
    pub first_state_port: u16,
    /// A port that is taken is a failure.
    pub strict_ports: bool,
    /// Time for each step that waits for somebody else.
    pub timeout: Duration,
    /// Whether rates are measured: to at most 16 peers, one after the other, over one connection, for less than a
    /// second and with at most 256 MiB each.
    pub rates: bool,
}

impl Patient {
    /// With the defaults of a peer.
    #[must_use]
    pub fn new(master: &str) -> Self {
        Self {
            master: master.to_owned(),
            run_key: None,
            run_name: None,
            advertised_host: None,
            bind: None,
            first_p2p_port: limits::FIRST_P2P_PORT,
            first_state_port: limits::FIRST_STATE_PORT,
            strict_ports: false,
            timeout: Duration::from_secs(10),
            rates: true,
        }
    }
}

/// Finds out whether this machine could take part. Takes a second or two where all is well, and a few time-outs where
/// packets are dropped.
#[must_use]
pub fn examine(patient: &Patient) -> Report {
    let mut report = Report::default();
    let Some((places, key)) = master::address(patient, &mut report) else { return report };
    let mut round = Round::new(patient, places, key);
    while let Some(place) = round.places.pop_front() {
        let mut of_place = Report::default();
        round.visit(place, &mut of_place);
        round.reports.push(of_place);
    }
    let Some((way, listening, answer)) = round.end(&mut report) else { return report };
    path::look(&way, &answer, &mut report);
    ports::judge(patient, &way, &listening, &answer, &mut report);
    peers::look(patient, &way, (&listening, &answer), &mut report);
    report
}

/// A look at all masters of a list, and at those that they name.
struct Round<'a> {
    patient: &'a Patient,
    key: Option<RunKey>,
    /// Where masters may be that were not looked at.
    places: VecDeque<HostPort>,
    known: Vec<HostPort>,
    /// The finding at each place.
    reports: Vec<Report>,
    listening: Option<Listening>,
    /// Listening failed: there is nothing to ask for.
    is_deaf: bool,
    acting: Option<(HostPort, Way, Answer)>,
    /// The answers of masters that stand by.
    standbys: Vec<String>,
}

impl<'a> Round<'a> {
    fn new(patient: &'a Patient, places: Vec<HostPort>, key: Option<RunKey>) -> Self {
        Self {
            patient,
            key,
            known: places.clone(),
            places: places.into(),
            reports: Vec::new(),
            listening: None,
            is_deaf: false,
            acting: None,
            standbys: Vec::new(),
        }
    }

    /// Reaches one master, and asks it how it sees this machine.
    fn visit(&mut self, place: HostPort, report: &mut Report) {
        let Some(mut way) = master::reach(self.patient, &place, self.key.clone(), report) else { return };
        if self.listening.is_none() && !self.is_deaf {
            self.listening = ports::listen(self.patient, &way, report);
            self.is_deaf = self.listening.is_none();
        }
        let Some(listening) = &self.listening else { return };
        match ports::ask(self.patient, &mut way, listening, report) {
            Some(Asked::Answer(answer)) => match &self.acting {
                Some((first, _, known)) if known.told.run != answer.told.run => {
                    let found = format!("{place} and {first} lead different runs");
                    let remedy = "give peers the masters of one run only: end one of them, or start it with \
                                  --standby-of the other";
                    report.failed("run", found, remedy);
                }
                // The same one, under another name.
                Some(_) => {}
                None => self.acting = Some((place, way, answer)),
            },
            Some(Asked::StandsBy { acting, text }) => {
                report.fine("master", format!("{place}: {text}"));
                self.standbys.push(format!("{place}: {text}"));
                // The one that acts is looked at next, even if it is in no list.
                if let Some(acting) = acting.filter(|acting| !self.known.contains(acting)) {
                    self.known.push(acting.clone());
                    self.places.push_front(acting);
                }
            }
            None => {}
        }
    }

    /// The findings about the masters, and the one that acts.
    fn end(mut self, report: &mut Report) -> Option<(Way, Listening, Answer)> {
        let acts = self.acting.is_some();
        for mut of_place in self.reports {
            // A peer with the same list connects.
            if acts && self.known.len() > 1 {
                of_place.excuse("master");
                of_place.excuse("name");
            }
            report.findings.append(&mut of_place.findings);
        }
        if !acts && !self.standbys.is_empty() {
            let found = format!("no master acts: {}", self.standbys.join("; "));
            let remedy = "a standby that knows the run takes over when more than half of the members are there; if \
                          none has known a run, start one of them without --standby-of";
            report.failed("master", found, remedy);
        }
        let (_, way, answer) = self.acting?;
        Some((way, self.listening.take()?, answer))
    }
}
