//! Which fault happens when: a pure function of the seed and of what it is shown of the run.

use crate::{
    args::{PeerRange, Profile},
    rng::Rng,
};

/// Shortest and longest time that a peer is stopped, in milliseconds.
const STOP_MS: (u64, u64) = (200, 5_000);
/// The run promises to go on while there are two untouched peers, so there always are.
const UNTOUCHED: usize = 2;
/// Shortest time for which one peer is spared, so that somebody lives long enough to show a leak, in microseconds.
const TENURE_US: u64 = 60_000_000;

/// Something that is done to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(usize),
    Stop { peer: usize, for_us: u64 },
    Leave(usize),
    Spawn,
}

impl Fault {
    /// One word for what it is; reports count by it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Stop { .. } => "stop",
            Self::Leave(_) => "leave",
            Self::Spawn => "spawn",
        }
    }

    /// Whom it is done to, if that is a peer that is there.
    pub(crate) fn peer(&self) -> Option<usize> {
        match *self {
            Self::Kill(peer) | Self::Stop { peer, .. } | Self::Leave(peer) => Some(peer),
            Self::Spawn => None,
        }
    }
}

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
}

impl View {
    fn alive(&self) -> usize {
        self.starting + self.steady.len() + self.unsteady.len() + self.stopped.len()
    }
}

/// Weights of the faults and the time between them.
struct Weather {
    kill: u64,
    stop: u64,
    leave: u64,
    spawn: u64,
    interval_ms: (u64, u64),
    /// Chance in percent that two faults come at the same time.
    double_percent: u64,
}

fn weather(profile: Profile) -> Weather {
    let weather = |kill, stop, leave, spawn, interval_ms, double_percent| Weather {
        kill,
        stop,
        leave,
        spawn,
        interval_ms,
        double_percent,
    };
    match profile {
        Profile::Calm => weather(1, 1, 2, 4, (1_000, 2_000), 0),
        Profile::Default => weather(4, 2, 1, 5, (500, 2_000), 5),
        Profile::Storm => weather(5, 4, 1, 8, (500, 1_000), 30),
    }
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
}

impl Schedule {
    /// A schedule for a run of `duration_us` whose first peers have the numbers from 0 to the smallest number of peers.
    pub(crate) fn new(seed: u64, profile: Profile, peers: PeerRange, duration_us: u64, now_us: u64) -> Self {
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
        };
        schedule.next_us = now_us + schedule.interval_us();
        schedule
    }

    /// The faults that are due.
    pub(crate) fn due(&mut self, now_us: u64, view: &View) -> Vec<Fault> {
        if now_us < self.next_us {
            return Vec::new();
        }
        self.next_us = now_us + self.interval_us();
        self.change_spared(now_us, view);
        let mut view = view.clone();
        let count = 1 + usize::from(self.rng.below(100) < self.weather.double_percent);
        let mut faults = Vec::new();
        for _ in 0..count {
            faults.extend(self.choose(&mut view));
        }
        faults
    }

    fn interval_us(&mut self) -> u64 {
        let (low, high) = self.weather.interval_ms;
        self.rng.between(low, high) * 1000
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
        let members = if view.steady.len() > UNTOUCHED { spare(&view.steady) } else { Vec::new() };
        let moving = [&members[..], &spare(&view.unsteady)].concat();
        let all = [&moving[..], &view.stopped].concat();
        let weight = |weight, possible: bool| if possible { weight } else { 0 };
        let weights = [
            weight(self.weather.kill, !all.is_empty()),
            weight(self.weather.stop, !moving.is_empty() && view.may_stop),
            weight(self.weather.leave, !members.is_empty() && view.alive() > self.peers.min),
            weight(self.weather.spawn, view.alive() < self.peers.max),
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
                let for_us = self.rng.between(STOP_MS.0, STOP_MS.1) * 1000;
                let peer = self.take(view, &moving);
                view.stopped.push(peer);
                Fault::Stop { peer, for_us }
            }
            2 => Fault::Leave(self.take(view, &members)),
            _ => {
                view.starting += 1;
                Fault::Spawn
            }
        })
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

    const RANGE: PeerRange = PeerRange { min: 3, max: 6 };

    /// Plays a schedule against a run in which everything happens at once; returns what it did.
    fn play(seed: u64, profile: Profile, seconds: u64) -> Vec<Fault> {
        let mut schedule = Schedule::new(seed, profile, RANGE, seconds * 1_000_000, 0);
        let mut view = View { steady: vec![0, 1, 2], may_stop: true, ..View::default() };
        let (mut next, mut resumes, mut done) = (3, Vec::new(), Vec::new());
        for now in (0..seconds * 1_000_000).step_by(10_000) {
            resumes.retain(|&(at, peer)| {
                if at <= now && view.stopped.contains(&peer) {
                    view.stopped.retain(|&other| other != peer);
                    view.steady.push(peer);
                    view.steady.sort_unstable();
                }
                at > now
            });
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
                        assert!((200_000..=5_000_000).contains(&for_us));
                        view.steady.retain(|&other| other != peer);
                        view.stopped.push(peer);
                        resumes.push((now + for_us, peer));
                    }
                }
                assert!(view.steady.len() >= UNTOUCHED, "{done:?}");
                assert!(view.alive() <= RANGE.max, "{done:?}");
            }
        }
        done
    }

    #[test]
    fn equal_seeds_give_equal_schedules_and_every_fault_occurs() {
        for profile in [Profile::Calm, Profile::Default, Profile::Storm] {
            let faults = play(1, profile, 300);
            assert_eq!(faults, play(1, profile, 300));
            assert_ne!(faults, play(2, profile, 300));
            let count = |test: fn(&Fault) -> bool| faults.iter().filter(|fault| test(fault)).count();
            assert!(count(|fault| matches!(fault, Fault::Kill(_))) > 3);
            assert!(count(|fault| matches!(fault, Fault::Stop { .. })) > 3);
            assert!(count(|fault| matches!(fault, Fault::Leave(_))) > 3);
            assert!(count(|fault| matches!(fault, Fault::Spawn)) > 3);
        }
    }

    #[test]
    fn without_leave_to_stop_nobody_is_stopped() {
        let mut schedule = Schedule::new(3, Profile::Storm, RANGE, 1_000_000, 0);
        let view = View { steady: vec![0, 1, 2, 3], ..View::default() };
        for now in (0..100_000_000).step_by(100_000) {
            let faults = schedule.due(now, &view);
            assert!(!faults.iter().any(|fault| matches!(fault, Fault::Stop { .. })));
        }
    }

    #[test]
    fn one_peer_is_spared_for_its_tenure() {
        let faults = play(4, Profile::Storm, 50);
        let mut schedule = Schedule::new(4, Profile::Storm, RANGE, 50_000_000, 0);
        schedule.next_us = 0;
        let spared = schedule.spared;
        assert!(!faults.iter().any(
            |fault| matches!(fault, Fault::Kill(p) | Fault::Leave(p) | Fault::Stop { peer: p, .. } if *p == spared)
        ));
    }

    #[test]
    fn below_the_smallest_number_somebody_is_started() {
        let mut schedule = Schedule::new(5, Profile::Default, RANGE, 1_000_000, 0);
        let view = View { steady: vec![0, 1], ..View::default() };
        assert!(schedule.due(10_000_000, &view).contains(&Fault::Spawn));
    }
}
