//! Which fault happens when: a pure function of the seed and of what it is shown of the run.

use crate::{
    args::{PeerRange, Profile},
    fault::{Fault, LinkFault, Trouble},
};
use pccl_testkit::random::Rng;
use std::collections::BTreeMap;

/// Shortest and longest time that a peer is stopped or a connection disturbed, in milliseconds.
const LASTS_MS: (u64, u64) = (200, 20_000);
/// Up to here half of them last.
const OFTEN_MS: u64 = 2_000;
/// The run promises to go on while there are two untouched peers in each group, so there always are.
const UNTOUCHED: usize = 2;
/// Shortest time for which one peer is spared, so that somebody lives long enough to show a leak, in microseconds.
const TENURE_US: u64 = 60_000_000;
/// Time between two kills of the master, in milliseconds: where that ends the run for all, and where it goes on.
const MASTER_EVERY_MS: (u64, u64) = (15_000, 30_000);
const SURVIVED_EVERY_MS: (u64, u64) = (5_000, 20_000);
/// Time after any other fault in which the master is left alone, in microseconds: it knows by then who is gone.
const MASTER_CALM_US: u64 = 1_000_000;
/// How long there is no master, or one less that stands by, in milliseconds.
const MASTER_DOWN_MS: (u64, u64) = (50, 3_000);
/// Delay of every byte, in microseconds: from a neighbouring city to the other side of the world.
const DELAY_US: (u64, u64) = (1_000, 150_000);
/// Connections that are disturbed for a while at the same time. Each slows the whole ring down.
const DISTURBED_MAX: usize = 2;

/// The run as the schedule sees it. Numbers of peers are in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Members that nothing is done to at the moment.
    pub(crate) steady: Vec<usize>,
    /// Processes that are on their way in, or recover from a stop.
    pub(crate) unsteady: Vec<usize>,
    /// Stopped processes.
    pub(crate) stopped: Vec<usize>,
    /// Whether a peer may be stopped now. Each stop may cost a peer time-out; without a pause they would add up.
    pub(crate) may_stop: bool,
    /// Processes that are started at this moment; not known to anybody else yet.
    pub(crate) starting: usize,
    /// The group of each peer, where there are several groups.
    pub(crate) groups: BTreeMap<usize, u32>,
    /// How many disturbances of connections last at the moment; `None` if connections cannot be disturbed.
    pub(crate) disturbed: Option<usize>,
    /// The master may be lost: a run that does not survive it is one in which everybody that runs is a member and holds
    /// the state of its group; one that does has nobody who is stopped or about to end.
    pub(crate) settled: bool,
    /// The master is stopped, or was killed, and not all have found the new one yet.
    pub(crate) leaderless: bool,
}

impl View {
    fn alive(&self) -> usize {
        self.starting + self.steady.len() + self.unsteady.len() + self.stopped.len()
    }

    /// Members that something may be done to, one at a time.
    fn expendable(&self) -> Vec<usize> {
        let group = |peer: &usize| self.groups.get(peer).copied().unwrap_or(0);
        let enough = |peer: &&usize| {
            self.steady.iter().filter(|other| group(other) == group(peer)).count() > UNTOUCHED
        };
        self.steady.iter().filter(enough).copied().collect()
    }
}

/// Weights of the faults and the time between them.
struct Weather {
    kill: u64,
    stop: u64,
    leave: u64,
    spawn: u64,
    link: u64,
    interval_ms: (u64, u64),
    /// Chance in percent that two faults come at the same time.
    double_percent: u64,
}

fn weather(profile: Profile) -> Weather {
    let weather = |[kill, stop, leave, spawn, link]: [u64; 5], interval_ms, double_percent| Weather {
        kill,
        stop,
        leave,
        spawn,
        link,
        interval_ms,
        double_percent,
    };
    match profile {
        Profile::Calm => weather([1, 1, 2, 4, 1], (1_000, 2_000), 0),
        Profile::Default | Profile::Async | Profile::Segments => weather([4, 2, 1, 5, 3], (500, 2_000), 5),
        Profile::State => weather([5, 1, 1, 8, 1], (1_000, 3_000), 60),
        Profile::Storm => weather([5, 4, 1, 8, 6], (500, 1_000), 30),
    }
}

/// The conditions that a schedule is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) peers: PeerRange,
    pub(crate) duration_us: u64,
    pub(crate) master_kill: bool,
    /// The run goes on after that.
    pub(crate) survives_master: bool,
    /// Bytes that an edge carries in one step.
    pub(crate) step_bytes: u64,
}

/// See the module's documentation.
pub(crate) struct Schedule {
    rng: Rng,
    weather: Weather,
    peers: PeerRange,
    next_us: u64,
    tenure_us: u64,
    spared: usize,
    spared_since_us: u64,
    /// When the master is to be killed.
    next_master_us: Option<u64>,
    /// Time between two kills.
    master_every_ms: (u64, u64),
    /// When something was done last.
    last_us: u64,
    /// Bytes that an edge carries in one step.
    step_bytes: u64,
    replace_at_once: bool,
}

impl Schedule {
    /// A schedule for a run of `duration_us` whose first peers have the numbers from 0 to the smallest number of peers.
    pub(crate) fn new(seed: u64, plan: Plan, now_us: u64) -> Self {
        let Plan { profile, peers, duration_us, master_kill, survives_master, step_bytes } = plan;
        let mut rng = Rng::keyed(&[seed, 5]);
        let spared = rng.below(peers.min as u64) as usize;
        let mut schedule = Self {
            rng,
            weather: weather(profile),
            peers,
            next_us: 0,
            tenure_us: TENURE_US.max(duration_us / 6),
            spared,
            spared_since_us: now_us,
            next_master_us: None,
            master_every_ms: if survives_master { SURVIVED_EVERY_MS } else { MASTER_EVERY_MS },
            last_us: now_us,
            step_bytes,
            replace_at_once: false,
        };
        schedule.next_us = now_us + schedule.interval_us();
        if master_kill {
            schedule.next_master_us = Some(now_us + schedule.draw_us(schedule.master_every_ms));
        }
        schedule
    }

    /// One fault in `mean_us` on average, never two at the same time, whatever the profile says; and where the number
    /// of peers is fixed, who is gone is replaced at once.
    pub(crate) fn every(&mut self, mean_us: u64) {
        let mean_ms = mean_us / 1000;
        self.weather.interval_ms = (mean_ms / 2, mean_ms + mean_ms / 2);
        self.weather.double_percent = 0;
        self.replace_at_once = self.peers.min == self.peers.max;
    }

    /// Faults begin now.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.next_us = now_us + self.interval_us();
        self.spared_since_us = now_us;
    }

    /// The faults that are due.
    pub(crate) fn due(&mut self, now_us: u64, view: &View) -> Vec<Fault> {
        if let Some(fault) = self.master_due(now_us, view) {
            return fault.into_iter().collect();
        }
        if self.replace_at_once && view.alive() < self.peers.min {
            return vec![Fault::Spawn; self.peers.min - view.alive()];
        }
        if now_us < self.next_us {
            return Vec::new();
        }
        self.next_us = now_us + self.interval_us();
        self.last_us = now_us;
        self.change_spared(now_us, view);
        let mut view = view.clone();
        let count = 1 + usize::from(self.rng.below(100) < self.weather.double_percent);
        let mut faults = Vec::new();
        for _ in 0..count {
            faults.extend(self.choose(&mut view));
        }
        // Newcomers share the peers that lend them the state.
        let may_be_more = self.weather.double_percent > 0 && faults.contains(&Fault::Spawn);
        if may_be_more && self.rng.below(3) == 0 {
            let more = self.peers.max.saturating_sub(view.alive()).min(2);
            faults.extend(std::iter::repeat_n(Fault::Spawn, more));
        }
        faults
    }

    /// Around the death of a master nothing else is done. A run goes on from what its members hold when they meet
    /// again; if newcomers met first, or somebody who had been away, theirs would be the state that counts.
    fn master_due(&mut self, now_us: u64, view: &View) -> Option<Option<Fault>> {
        if view.leaderless {
            return Some(None);
        }
        if self.next_master_us.is_none_or(|next| now_us < next) {
            return None;
        }
        if !view.settled || now_us < self.last_us + MASTER_CALM_US {
            return Some(None);
        }
        self.next_master_us = Some(now_us + self.draw_us(self.master_every_ms));
        Some(Some(match self.rng.below(3) {
            0 => Fault::MasterStop { for_us: self.lasts_us() },
            _ => Fault::Master { down_us: self.draw_us(MASTER_DOWN_MS) },
        }))
    }

    fn interval_us(&mut self) -> u64 {
        self.draw_us(self.weather.interval_ms)
    }

    fn draw_us(&mut self, (low_ms, high_ms): (u64, u64)) -> u64 {
        self.rng.between(low_ms, high_ms) * 1000
    }

    /// How long something lasts: often short, sometimes long.
    fn lasts_us(&mut self) -> u64 {
        let (low, high) = LASTS_MS;
        let range = if self.rng.below(2) == 0 { (low, OFTEN_MS) } else { (OFTEN_MS, high) };
        self.draw_us(range)
    }

    /// One peer is spared for a while; then it is the turn of the oldest other.
    fn change_spared(&mut self, now_us: u64, view: &View) {
        let gone = !view.steady.contains(&self.spared)
            && !view.unsteady.contains(&self.spared)
            && !view.stopped.contains(&self.spared);
        let over = now_us - self.spared_since_us > self.tenure_us;
        if (gone || over)
            && let Some(&next) = view.steady.iter().find(|&&peer| peer != self.spared)
        {
            self.spared = next;
            self.spared_since_us = now_us;
        }
    }

    /// Chooses one fault and applies it to the view.
    fn choose(&mut self, view: &mut View) -> Option<Fault> {
        if view.alive() < self.peers.min {
            view.starting += 1;
            return Some(Fault::Spawn);
        }
        let spare = |peers: &[usize]| -> Vec<usize> {
            peers.iter().copied().filter(|&peer| peer != self.spared).collect()
        };
        let members = spare(&view.expendable());
        let moving = [&members[..], &spare(&view.unsteady)].concat();
        // Most stopped peers are to learn what happened to them.
        let stopped = if self.rng.below(4) == 0 { &view.stopped[..] } else { &[] };
        let all = [&moving[..], stopped].concat();
        let weight = |weight, possible: bool| if possible { weight } else { 0 };
        let weights = [
            weight(self.weather.kill, !all.is_empty()),
            weight(self.weather.stop, !moving.is_empty() && view.may_stop),
            weight(self.weather.leave, !members.is_empty() && view.alive() > self.peers.min),
            weight(self.weather.spawn, view.alive() < self.peers.max),
            weight(self.weather.link, view.disturbed.is_some() && !view.steady.is_empty()),
        ];
        let total = weights.iter().sum::<u64>();
        if total == 0 {
            return None;
        }
        let mut draw = self.rng.below(total);
        let mut kind = 0;
        while draw >= weights[kind] {
            draw -= weights[kind];
            kind += 1;
        }
        Some(match kind {
            0 => Fault::Kill(self.take(view, &all)),
            1 => {
                let for_us = self.lasts_us();
                let peer = self.take(view, &moving);
                view.stopped.push(peer);
                view.may_stop = false;
                Fault::Stop { peer, for_us }
            }
            2 => Fault::Leave(self.take(view, &members)),
            3 => {
                view.starting += 1;
                Fault::Spawn
            }
            _ => Fault::Link(self.link_fault(view)?),
        })
    }

    /// Something that happens to connections; the spared peer's as well.
    fn link_fault(&mut self, view: &mut View) -> Option<LinkFault> {
        let disturbed = view.disturbed?;
        let peer = view.steady[self.rng.below(view.steady.len() as u64) as usize];
        let (all, pick, for_us) = (self.rng.below(4) == 0, self.rng.next(), self.lasts_us());
        let most = if disturbed < DISTURBED_MAX { 5 } else { 2 };
        let trouble = match self.rng.below(most) {
            0 => Trouble::Reset,
            1 => Trouble::Flip { in_bytes: self.rng.below(self.step_bytes.max(1)) },
            2 => Trouble::Delay { us: self.rng.between(DELAY_US.0, DELAY_US.1) },
            // A step takes between a quarter of a second and two seconds.
            3 => {
                Trouble::Throttle { bytes_per_s: self.rng.between(self.step_bytes / 2, self.step_bytes * 4) }
            }
            _ if view.may_stop => {
                view.may_stop = false;
                Trouble::Cut
            }
            _ => return None,
        };
        if !matches!(trouble, Trouble::Reset | Trouble::Flip { .. }) {
            view.disturbed = Some(disturbed + 1);
        }
        Some(LinkFault { peer, all, pick, trouble, for_us })
    }

    fn take(&mut self, view: &mut View, from: &[usize]) -> usize {
        let peer = from[self.rng.below(from.len() as u64) as usize];
        for list in [&mut view.steady, &mut view.unsteady, &mut view.stopped] {
            list.retain(|&other| other != peer);
        }
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: PeerRange = PeerRange { min: 4, max: 8 };

    fn plan(profile: Profile, seconds: u64) -> Plan {
        let (peers, duration_us) = (RANGE, seconds * 1_000_000);
        Plan { profile, peers, duration_us, master_kill: true, survives_master: false, step_bytes: 400_000 }
    }

    /// Plays a schedule against a run in which everything happens at once; returns what it did.
    fn play(seed: u64, profile: Profile, seconds: u64) -> Vec<Fault> {
        let mut schedule = Schedule::new(seed, plan(profile, seconds), 0);
        let groups = (0..1000).map(|peer| (peer, peer as u32 % 2)).collect();
        let mut view = View { steady: vec![0, 1, 2, 3], groups, disturbed: Some(0), ..View::default() };
        let (mut next, mut resumes, mut done) = (4, Vec::new(), Vec::new());
        for now in (0..seconds * 1_000_000).step_by(10_000) {
            resumes.retain(|&(at, peer)| {
                if at <= now && view.stopped.contains(&peer) {
                    view.stopped.retain(|&other| other != peer);
                    view.steady.push(peer);
                    view.steady.sort_unstable();
                }
                at > now
            });
            view.settled = view.stopped.is_empty();
            view.may_stop = view.settled;
            for fault in schedule.due(now, &view) {
                done.push(fault);
                match fault {
                    Fault::Spawn => {
                        view.steady.push(next);
                        next += 1;
                    }
                    Fault::Kill(peer) | Fault::Leave(peer) => {
                        view.steady.retain(|&other| other != peer);
                        view.stopped.retain(|&other| other != peer);
                    }
                    Fault::Stop { peer, for_us } => {
                        assert!((200_000..=20_000_000).contains(&for_us));
                        view.steady.retain(|&other| other != peer);
                        view.stopped.push(peer);
                        resumes.push((now + for_us, peer));
                    }
                    Fault::Link(link) => {
                        assert!(view.steady.contains(&link.peer));
                        assert!((200_000..=20_000_000).contains(&link.for_us));
                    }
                    Fault::Master { down_us } => assert!(view.settled && down_us <= 3_000_000),
                    Fault::MasterStop { for_us } => assert!(view.settled && for_us <= 20_000_000),
                }
                for group in 0..2 {
                    let steady = view.steady.iter().filter(|&&peer| peer as u32 % 2 == group).count();
                    assert!(steady >= UNTOUCHED, "{done:?}");
                }
                assert!(view.alive() <= RANGE.max, "{done:?}");
            }
        }
        done
    }

    #[test]
    fn equal_seeds_give_equal_schedules_and_every_fault_occurs() {
        for profile in [Profile::Calm, Profile::Default, Profile::Storm] {
            let faults = play(1, profile, 600);
            assert_eq!(faults, play(1, profile, 600));
            assert_ne!(faults, play(2, profile, 600));
            for kind in [
                "kill",
                "stop",
                "leave",
                "spawn",
                "master",
                "master_stop",
                "delay",
                "throttle",
                "cut",
                "reset",
                "flip",
            ] {
                let count = faults.iter().filter(|fault| fault.kind() == kind).count();
                assert!(count > 3, "{profile}: {count} times {kind}");
            }
        }
    }

    #[test]
    fn without_leave_to_stop_nothing_is_stopped() {
        let mut schedule = Schedule::new(3, plan(Profile::Storm, 1), 0);
        let view = View { steady: vec![0, 1, 2, 3], disturbed: Some(0), ..View::default() };
        for now in (0..100_000_000).step_by(100_000) {
            for fault in schedule.due(now, &view) {
                assert!(!["stop", "cut"].contains(&fault.kind()), "{fault:?}");
            }
        }
    }

    #[test]
    fn without_a_proxy_no_connection_is_disturbed_and_too_many_are_never() {
        let mut schedule = Schedule::new(3, plan(Profile::Storm, 1), 0);
        let mut view = View { steady: vec![0, 1, 2, 3], may_stop: true, ..View::default() };
        for now in (0..20_000_000).step_by(100_000) {
            assert!(!schedule.due(now, &view).iter().any(|fault| matches!(fault, Fault::Link(_))));
        }
        view.disturbed = Some(DISTURBED_MAX);
        for now in (20_000_000..100_000_000).step_by(100_000) {
            for fault in schedule.due(now, &view) {
                assert!(!["delay", "throttle", "cut"].contains(&fault.kind()), "{fault:?}");
            }
        }
    }

    #[test]
    fn around_the_death_of_a_master_nothing_else_is_done() {
        let mut schedule = Schedule::new(3, plan(Profile::Storm, 1), 0);
        let view = View { steady: vec![0, 1, 2, 3], may_stop: true, ..View::default() };
        let late = 40_000_000;
        assert_eq!(schedule.due(late, &view), [], "not everybody holds the state");
        let settled = View { settled: true, ..view };
        let faults = schedule.due(late, &settled);
        assert!(matches!(faults[..], [Fault::Master { .. } | Fault::MasterStop { .. }]), "{faults:?}");
        assert_eq!(schedule.due(late + 10_000_000, &View { leaderless: true, ..settled }), []);
    }

    #[test]
    fn one_peer_is_spared_for_its_tenure() {
        let faults = play(4, Profile::Storm, 50);
        let schedule = Schedule::new(4, plan(Profile::Storm, 50), 0);
        assert!(!faults.iter().any(|fault| fault.peer() == Some(schedule.spared)));
    }

    #[test]
    fn two_peers_of_two_are_left_alone() {
        let peers = PeerRange { min: 2, max: 2 };
        let mut schedule = Schedule::new(5, Plan { peers, ..plan(Profile::Storm, 1) }, 0);
        let view = View { steady: vec![0, 1], may_stop: true, ..View::default() };
        for now in (0..14_000_000).step_by(100_000) {
            assert_eq!(schedule.due(now, &view), []);
        }
    }

    #[test]
    fn a_fixed_interval_is_kept_and_a_fixed_number_of_peers_refilled() {
        let peers = PeerRange { min: 6, max: 6 };
        let mut schedule = Schedule::new(6, Plan { peers, master_kill: false, ..plan(Profile::Storm, 1) }, 0);
        schedule.every(10_000_000);
        schedule.begin(0);
        let full = View { steady: (0..6).collect(), may_stop: true, ..View::default() };
        let one_less = View { steady: (0..5).collect(), may_stop: true, ..View::default() };
        let mut made = 0;
        for now in (0..1_000_000_000).step_by(10_000) {
            made += schedule.due(now, &full).len();
        }
        assert!((85..=115).contains(&made), "{made} faults in 100 intervals");
        assert_eq!(schedule.due(0, &one_less), [Fault::Spawn]);
    }

    #[test]
    fn below_the_smallest_number_somebody_is_started() {
        let mut schedule = Schedule::new(5, plan(Profile::Default, 1), 0);
        let view = View { steady: vec![0, 1], ..View::default() };
        assert!(schedule.due(10_000_000, &view).contains(&Fault::Spawn));
    }
}
