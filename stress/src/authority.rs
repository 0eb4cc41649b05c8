//! The masters of a run: the one that acts, those that stand by for it, and those that follow them when they are
//! killed.

use crate::{
    args::Args,
    children::{Notice, Starter, Who},
    journal::Journal,
    master::{self, LISTENING},
    oracle::{Check, Oracle},
    os,
    report::Survivor,
    seat::{Seat, Settings},
};
use std::{
    io,
    path::Path,
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

/// Time in which a master has to say where it listens, and later to end.
const PATIENCE_US: u64 = 30_000_000;
/// Time in which a standby has to know all, and to take over.
const TAKEOVER_US: u64 = 30_000_000;
/// Time after which what a master knows of its standbys is known to its peers as well.
const TOLD_US: u64 = 1_000_000;
/// How often an ending process is looked at.
const POLL: Duration = Duration::from_millis(10);

/// See the module's documentation.
pub(crate) struct Authority {
    seats: Vec<Seat>,
    settings: Settings,
    /// Which one acts, by the last that is known, and in which term.
    acting: usize,
    term: u64,
    /// Since when nobody acts: it was killed or stopped, and others stand by.
    vacant_us: Option<u64>,
    /// Since when somebody stands by for it who knows all.
    safe_us: Option<u64>,
    /// Since when nobody does.
    bare_us: u64,
}

impl Authority {
    /// Starts the first masters.
    pub(crate) fn start(
        args: &Args,
        folder: &Path,
        starter: &Starter,
        heard: &Receiver<Notice>,
    ) -> io::Result<Self> {
        let settings = Settings {
            peer_timeout_ms: args.peer_timeout_ms,
            memory: args.master_journal.then(|| folder.join("master-journal")),
            accept_standbys: args.standbys > 0,
            folder: folder.to_owned(),
            starter: starter.clone(),
        };
        let mut seats: Vec<Seat> = Vec::new();
        for place in 0..=args.standbys as usize {
            let before: Vec<String> = seats.iter().map(|seat| seat.address.clone()).collect();
            let mut seat = Seat::start(place, &settings, &before)?;
            let deadline = Instant::now() + Duration::from_micros(PATIENCE_US);
            while seat.address.is_empty() {
                match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(Notice::Line(Who::Master(from), line)) => match line.strip_prefix(LISTENING) {
                        Some(address) if from == place => address.clone_into(&mut seat.address),
                        // It says again that others stand by.
                        _ => {}
                    },
                    other => {
                        let log = seat.log(&settings);
                        let text = format!("a master did not start ({other:?}); see {}", log.display());
                        return Err(io::Error::other(text));
                    }
                }
            }
            seats.push(seat);
        }
        let bare_us = os::monotonic_us();
        Ok(Self { seats, settings, acting: 0, term: 0, vacant_us: None, safe_us: None, bare_us })
    }

    fn has_standbys(&self) -> bool {
        self.seats.len() > 1
    }

    /// Where all of them are, as a list.
    pub(crate) fn addresses(&self) -> String {
        self.seats.iter().map(|seat| seat.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Names and numbers of the processes.
    pub(crate) fn processes(&self) -> Vec<(String, u32)> {
        self.seats.iter().map(|seat| (seat.name(), seat.pid())).collect()
    }

    /// Whether there is a master, and if others are to take over, one that can.
    pub(crate) fn may_be_lost(&self, now_us: u64) -> bool {
        let is_safe = || self.safe_us.is_some_and(|since| now_us > since + TOLD_US);
        let is_there = self.vacant_us.is_none() && self.seats[self.acting].is_at_work();
        is_there && (!self.has_standbys() || is_safe())
    }

    /// Kills the master that acts, unless it may not be lost.
    pub(crate) fn kill(
        &mut self,
        down_us: u64,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        if !self.may_be_lost(now_us) {
            return Ok(());
        }
        let name = self.seats[self.acting].name();
        journal.event(now_us, &format!("kill the {name}; the next one comes in {} ms", down_us / 1000))?;
        // The master that goes on knows all that the killed one knew, so nobody may notice more than a pause.
        if self.settings.memory.is_some() || self.has_standbys() {
            oracle.master_stopped(now_us);
        } else {
            oracle.master_killed(now_us);
        }
        self.vacate(now_us);
        self.seats[self.acting].kill(now_us + down_us)
    }

    /// Stops the master that acts for a while, unless it may not be lost.
    pub(crate) fn stop(
        &mut self,
        for_us: u64,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        if !self.may_be_lost(now_us) {
            return Ok(());
        }
        let name = self.seats[self.acting].name();
        journal.event(now_us, &format!("stop the {name} for {} ms", for_us / 1000))?;
        oracle.master_stopped(now_us);
        self.vacate(now_us);
        self.seats[self.acting].stop(now_us + for_us)
    }

    /// From now on others may take over, if there are any.
    fn vacate(&mut self, now_us: u64) {
        if self.has_standbys() {
            (self.vacant_us, self.safe_us) = (Some(now_us), None);
        }
    }

    /// This one acts, and whoever was waited for need not be.
    fn acts(&mut self, place: usize, oracle: &mut Oracle, now_us: u64) {
        if self.acting != place {
            (self.acting, self.safe_us) = (place, None);
        }
        if self.vacant_us.take().is_some() {
            self.bare_us = now_us;
            oracle.master_resumed(now_us);
        }
    }

    /// Lets masters go on, or starts the next ones, when the time has come.
    pub(crate) fn continue_due(
        &mut self,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        self.judge(oracle, now_us);
        for place in 0..self.seats.len() {
            let seat = &mut self.seats[place];
            if seat.resume_us.is_some_and(|at| at <= now_us) {
                journal.event(now_us, &format!("resume the {}", seat.name()))?;
                seat.resume()?;
                oracle.master_woken(place, now_us);
                // With standbys it says itself whether it still acts.
                if !self.has_standbys() {
                    oracle.master_resumed(now_us);
                } else if self.vacant_us.is_some() {
                    self.acts(place, oracle, now_us);
                }
            }
            let others = self.seats.iter().enumerate().filter(|(other, _)| *other != place);
            let others: Vec<String> = others.map(|(_, seat)| seat.address.clone()).collect();
            let seat = &mut self.seats[place];
            if seat.restart_due(&self.settings, &others, now_us)? {
                let text = format!("start a new {}, process {}", seat.name(), seat.pid());
                journal.event(now_us, &text)?;
            }
        }
        Ok(())
    }

    /// Whether masters do in time what they have to.
    fn judge(&mut self, oracle: &mut Oracle, now_us: u64) {
        let mut late = |text: String| oracle.violation(now_us, Check::Process, text);
        for seat in &mut self.seats {
            if seat.restarted_us.is_some_and(|since| now_us - since > PATIENCE_US) {
                seat.restarted_us = None;
                late(format!("a new {} did not say that it listens", seat.name()));
            }
        }
        if !self.has_standbys() {
            return;
        }
        if self.vacant_us.is_some_and(|since| now_us - since > TAKEOVER_US) {
            self.vacant_us = None;
            late("nobody takes over".to_owned());
        }
        let stands_by = |(place, seat): (usize, &Seat)| place != self.acting && seat.is_at_work();
        if self.vacant_us.is_some() || !self.seats.iter().enumerate().any(stands_by) {
            self.bare_us = now_us;
        }
        if self.safe_us.is_none() && now_us.saturating_sub(self.bare_us) > TAKEOVER_US {
            self.bare_us = now_us;
            late("nobody who stands by comes to know all".to_owned());
        }
    }

    /// A master has written a line. Whether that is news.
    pub(crate) fn line(&mut self, place: usize, line: &str, oracle: &mut Oracle) -> bool {
        let now_us = os::monotonic_us();
        if line.starts_with(LISTENING) {
            self.seats[place].restarted_us = None;
            match (self.has_standbys(), &self.settings.memory) {
                (true, _) => {}
                (false, Some(_)) => oracle.master_resumed(now_us),
                (false, None) => oracle.master_listens(now_us),
            }
        }
        let Some((term, standbys)) = master::acts(line) else { return true };
        oracle.leads(place, term, now_us);
        // A line of a master that was stopped or killed since is old.
        if term < self.term || term == self.term && self.vacant_us.is_some() {
            return false;
        }
        let was = (self.acting, self.safe_us.is_some());
        self.term = term;
        self.acts(place, oracle, now_us);
        self.safe_us = (standbys > 0).then(|| self.safe_us.unwrap_or(now_us));
        was != (self.acting, self.safe_us.is_some())
    }

    /// A master has closed its output.
    pub(crate) fn closed(&mut self, place: usize, oracle: &mut Oracle, now_us: u64) {
        let has_successor = self.has_standbys();
        let seat = &mut self.seats[place];
        if !seat.closed(has_successor, now_us) {
            let text = format!("the {} ended by itself; see its log", seat.name());
            oracle.violation(now_us, Check::Process, text);
        } else if seat.restart_us == Some(now_us) && self.acting == place && self.vacant_us.is_none() {
            // It woke up, and found out before its successor said a word.
            self.vacate(now_us);
            oracle.master_stopped(now_us);
        }
    }

    /// Looks at the processes.
    pub(crate) fn sample(&mut self, now_us: u64) {
        self.seats.iter_mut().for_each(|seat| seat.sample(now_us));
    }

    /// The present masters that were observed for long enough.
    pub(crate) fn survivors(&self) -> Vec<Survivor> {
        self.seats.iter().filter_map(|seat| Survivor::of(seat.name(), &seat.series)).collect()
    }

    /// Ends the masters; says what is wrong if they do not end in time and in order.
    pub(crate) fn end(&mut self, patience_us: u64) -> Option<String> {
        self.seats.iter_mut().for_each(Seat::hang_up);
        let deadline = Instant::now() + Duration::from_micros(patience_us);
        for seat in &mut self.seats {
            loop {
                match seat.ended() {
                    Some(Ok(())) => break,
                    Some(Err(text)) => return Some(text),
                    None if Instant::now() >= deadline => {
                        let name = seat.name();
                        return Some(format!("the {name} did not end within {} ms", patience_us / 1000));
                    }
                    None => thread::sleep(POLL),
                }
            }
        }
        None
    }
}
