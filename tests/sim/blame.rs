//! The answer to who is to blame: the ledger of what was done to whom, and what a verdict may say about it.
//!
//! Every fault that a run injects is written down here when it happens. When the master decides a verdict or drops a
//! peer, the ledger is asked whether that cause, at those peers, was there at that time. A cause that nobody injected
//! fails the run. So does a cause that names somebody else than the one to whom it was done, but for the cases of
//! [`LookAlike`], which nobody who sees only what the master sees could tell apart.

use crate::swarm::MS;
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// A process in one of its lives.
pub(crate) type Who = (usize, u32);

/// Something that is done to a process, or that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    /// It ended, or its control connection broke, or it gave the master up: its connections are closed.
    Ended,
    /// Its host went away without a word.
    Vanished,
    /// It stood still.
    Paused,
    /// Nothing that it sends reaches the master.
    Unheard,
    /// Nothing that the master sends reaches it.
    Deaf,
    Left,
    /// It sends anything.
    Hostile,
    /// It registered a second time on its connection.
    Twice,
    /// Its application computes for longer than a straggler may, or makes another call than the others.
    Dozed,
    /// It brings the state of an earlier life.
    Returned,
    /// Nobody can fetch state from it.
    NoStatePort,
    /// It can fetch state from nobody.
    NoStateWay,
}

/// Harm that is done to connections from one process to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// One broke.
    Broken,
    /// None can be built.
    Blocked,
    /// Nothing passes.
    Cut,
}

/// An act of a process itself on an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    GaveUp,
    Corrupt,
    Local,
}

/// Faults that the master cannot tell from another one, and why. The verdict still names the process, as one of two
/// where it says "edge". Each use is counted. The list is also in docs/testing/simulation.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LookAlike {
    /// The end of a process breaks its data connections, too. If the news of its end is slower than the grace of an
    /// edge, the neighbours' reports of a broken edge are all that the master has.
    EndOfAProcess,
    /// A router may answer for a host that has vanished, and reset its connections, before it counts as silent.
    VanishedHost,
    /// The edge to a stopped process stands still as a cut one does. If the process goes on just before it would be
    /// suspected, the report of the standstill is younger than the sign of life.
    StoodStill,
    /// Counts of the receiving end come late: its beats are seconds old, and still come often enough.
    LateCounts,
    /// Something that sends anything may claim anything about its edges.
    Hostile,
    /// An edge cannot be built to a process that does not hear of the ring, or whose own reports do not arrive. Its
    /// neighbour cannot build the edge either; which of the two goes is not the fault of either.
    RingOfADeafPeer,
    /// A fetch needs both of its ends. If one source fails one receiver, or several that can fetch from nobody, either
    /// end may be the one that goes.
    EitherEndOfAFetch,
    /// The beats of a healthy source come so late that it might have stopped, which would show nothing about the fetch:
    /// the failure does not count.
    LateBeats,
    /// Two peers that wait for each other in different calls: whoever was waited for first is the straggler.
    WaitedForEachOther,
}

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    what: T,
    from: u64,
    until: u64,
}

/// Everything that was done.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    deeds: BTreeMap<Who, Vec<Entry<Deed>>>,
    harms: BTreeMap<(usize, usize), Vec<Entry<Harm>>>,
    acts: BTreeSet<(OpId, PeerId, Act)>,
    /// Fetches that failed because that was injected.
    fetches: BTreeSet<(PeerId, RequestId)>,
    /// Fetches that had failed when one of the sources had not been heard for two beats.
    late_sources: BTreeSet<(PeerId, RequestId)>,
    /// Peers that gave a sync up.
    sync_quitters: BTreeSet<PeerId>,
    /// How often in a row a sync failed because of the fetch of this peer, although nothing kept its sources silent.
    vain: BTreeMap<PeerId, u32>,
    /// Peers that were dropped.
    kicks: BTreeMap<PeerId, KickReason>,
    /// How the loss of a peer was explained, to whichever operation.
    losses: BTreeMap<PeerId, Cause>,
    /// Times in which the master stood still.
    gaps: Vec<(u64, u64)>,
    /// Slowest delivery of a packet, faults aside.
    pub(crate) slowest: u64,
    pub(crate) look_alikes: BTreeMap<LookAlike, u64>,
    /// Verdicts by cause, and drops by code.
    pub(crate) judged: BTreeMap<String, u64>,
}

/// The facts that a verdict is judged against.
pub(crate) struct Scene<'a> {
    pub(crate) now: u64,
    /// When the attempt began.
    pub(crate) begun: u64,
    pub(crate) slots: &'a BTreeMap<PeerId, Who>,
    /// Whether a peer has been silent for so long that nobody else may be blamed.
    pub(crate) suspect: &'a dyn Fn(PeerId) -> bool,
}

impl Ledger {
    /// An empty ledger of a run whose slowest packet takes this long.
    pub(crate) fn new(slowest: u64) -> Self {
        Self { slowest, ..Self::default() }
    }

    pub(crate) fn done(&mut self, who: Who, what: Deed, from: u64, until: u64) {
        self.deeds.entry(who).or_default().push(Entry { what, from, until });
    }

    /// A process that goes on, or ends, before its time.
    pub(crate) fn over(&mut self, who: Who, what: Deed, now: u64) {
        for entry in self.deeds.entry(who).or_default().iter_mut().filter(|entry| entry.what == what) {
            entry.until = entry.until.min(now);
        }
    }

    pub(crate) fn harmed(&mut self, from: usize, to: usize, what: Harm, at: u64, until: u64) {
        self.harms.entry((from, to)).or_default().push(Entry { what, from: at, until });
    }

    pub(crate) fn acted(&mut self, op: OpId, peer: PeerId, act: Act) {
        self.acts.insert((op, peer, act));
    }

    pub(crate) fn fetch_failed(&mut self, peer: PeerId, request: RequestId) {
        self.fetches.insert((peer, request));
    }

    pub(crate) fn source_was_late(&mut self, receiver: PeerId, request: RequestId) {
        self.late_sources.insert((receiver, request));
    }

    pub(crate) fn gave_up_sync(&mut self, peer: PeerId) {
        self.sync_quitters.insert(peer);
    }

    pub(crate) fn master_gap(&mut self, from: u64, until: u64) {
        self.gaps.push((from, until));
    }

    /// Whether one of `deeds` was going on at `who` between `from` and `until`.
    pub(crate) fn had(&self, who: Who, deeds: &[Deed], from: u64, until: u64) -> bool {
        let overlaps = |e: &Entry<Deed>| deeds.contains(&e.what) && e.from <= until && e.until >= from;
        self.deeds.get(&who).is_some_and(|entries| entries.iter().any(overlaps))
    }

    fn harm(&self, from: usize, to: usize, since: u64, now: u64) -> bool {
        let overlaps = |e: &Entry<Harm>| e.from <= now && e.until >= since;
        self.harms.get(&(from, to)).is_some_and(|entries| entries.iter().any(overlaps))
    }

    /// Whether any connection of a slot was harmed.
    fn harm_near(&self, slot: usize, since: u64, now: u64) -> bool {
        self.harms.keys().any(|(a, b)| (*a == slot || *b == slot) && self.harm(*a, *b, since, now))
    }

    /// The earliest time of a fault that may still be news at `from`: packets take their time, reports are held back
    /// for the grace, and a master that stood still learns everything later.
    fn reach(&self, from: u64) -> u64 {
        let news = 2 * self.slowest + 1_500 * MS;
        let early = from.saturating_sub(news);
        self.gaps.iter().rev().fold(early, |early, (start, until)| match *until >= early {
            true => early.min(start.saturating_sub(news)),
            false => early,
        })
    }

    /// Counts a verdict that is judged elsewhere.
    pub(crate) fn count_verdict(&mut self, verdict: &Verdict) {
        *self.judged.entry(verdict.cause.to_string()).or_insert(0) += 1;
    }

    /// Judges a verdict of the master.
    pub(crate) fn judge(&mut self, verdict: &Verdict, scene: &Scene<'_>) -> Result<(), String> {
        let stalled =
            if verdict.silent_ms > 0 && verdict.cause == Cause::EdgeBroken { ", stalled" } else { "" };
        *self.judged.entry(format!("{}{stalled}", verdict.cause)).or_insert(0) += 1;
        if verdict.cause == Cause::WorldChanged {
            // Judged against the votes and the ring, by the checker; who is named may never have been.
            return Ok(());
        }
        let hostile = |ledger: &Self, peer: PeerId| {
            scene.slots.get(&peer).is_some_and(|who| ledger.had(*who, &[Deed::Hostile], 0, scene.now))
        };
        let first = verdict.culprits.first().ok_or("it names nobody")?.peer;
        let who = *scene.slots.get(&first).ok_or("it names somebody who never was")?;
        let alone = verdict.culprits.len() == 1;
        let need = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_owned()) };
        match verdict.cause {
            Cause::GroupBroken => return Err("nobody of this model forms groups of lists".into()),
            Cause::PeerDied => {
                need(alone && self.had(who, &[Deed::Ended], 0, scene.now), "nothing ended that process")?;
            }
            Cause::PeerSilent => {
                let silent = verdict.silent_ms.saturating_mul(MS);
                need(alone && silent >= PEER_TIMEOUT, "it was not silent for the time-out")?;
                // The cause of its silence was judged when it was dropped.
                let told = self.kicks.get(&first).map(|reason| reason.code);
                need(told == Some(KickCode::Silent), "that peer was not dropped for silence")?;
            }
            Cause::PeerDropped => {
                let told = self.kicks.get(&first).map(ToString::to_string);
                // A sync says there who could not fetch.
                let sync = matches!(verdict.operation, Operation::Sync(_)) && told.is_some();
                let same = told.as_deref() == Some(verdict.detail.as_str());
                need(alone && (sync || same), "it was told another reason")?;
            }
            Cause::PeerLeft => {
                need(
                    alone && self.had(who, &[Deed::Left, Deed::Hostile], 0, scene.now),
                    "that peer did not leave",
                )?;
            }
            Cause::EdgeBroken => self.judge_edge(verdict, scene)?,
            Cause::Corruption => {
                let by = verdict.culprits.get(1).map(|culprit| culprit.peer);
                self.judge_act(verdict, by.unwrap_or(first), Act::Corrupt)?;
            }
            Cause::CallerAbort => self.judge_act(verdict, first, Act::GaveUp)?,
            Cause::CallTimeout => self.judge_limit(verdict)?,
            Cause::LocalFault => self.judge_act(verdict, first, Act::Local)?,
            // Judged against the votes, by the checker.
            Cause::MismatchedCall | Cause::WorldChanged | Cause::NoSource => {}
            Cause::MasterStopping => return Err("the master does not stop".into()),
            other => return Err(format!("nothing is known of the cause {other}")),
        }
        let gone = [Cause::PeerDied, Cause::PeerSilent, Cause::PeerDropped, Cause::PeerLeft];
        if gone.contains(&verdict.cause) && !hostile(self, first) {
            let known = *self.losses.entry(first).or_insert(verdict.cause);
            need(known == verdict.cause, "another operation was told another cause")?;
        }
        Ok(())
    }

    fn judge_act(&self, verdict: &Verdict, by: PeerId, act: Act) -> Result<(), String> {
        let Operation::Collective(CollectiveId { op, .. }) = verdict.operation else {
            return Err("of no collective".into());
        };
        let did = self.acts.contains(&(op, by, act));
        if did { Ok(()) } else { Err(format!("{by} did nothing of that kind ({act:?})")) }
    }

    /// The details begin with whoever gave up, who is blamed only if it waited for nobody else.
    fn judge_limit(&self, verdict: &Verdict) -> Result<(), String> {
        let named = |peer: &PeerId| verdict.detail.as_str().starts_with(&peer.to_string());
        let by = match verdict.operation {
            Operation::Collective(CollectiveId { op, .. }) => {
                let mut acts = self.acts.iter().filter(|act| act.0 == op && act.2 == Act::GaveUp);
                acts.find(|act| named(&act.1)).map(|act| act.1)
            }
            Operation::Sync(_) => self.sync_quitters.iter().copied().find(|peer| named(peer)),
            other => return Err(format!("nobody gives up {other}")),
        };
        let by = by.ok_or("nobody whom it names gave up")?;
        let blamed = verdict.culprits.iter().any(|culprit| culprit.peer == by);
        if blamed && verdict.culprits.len() > 1 { Err("it blames who gave up".into()) } else { Ok(()) }
    }

    fn judge_edge(&mut self, verdict: &Verdict, scene: &Scene<'_>) -> Result<(), String> {
        let ends: Vec<Who> =
            verdict.culprits.iter().filter_map(|culprit| scene.slots.get(&culprit.peer)).copied().collect();
        let [from, to] = ends[..] else { return Err("an edge has two ends".into()) };
        let mut since = self.reach(scene.begun);
        // A report of one end may be on its way for as long as that end was not heard.
        let late = [Deed::Paused, Deed::Unheard, Deed::Deaf];
        let early = since.saturating_sub(LONGEST_STANDSTILL);
        if ends.iter().any(|who| self.had(*who, &late, early, scene.now)) {
            since = early;
        }
        if self.harm(from.0, to.0, since, scene.now) {
            return Ok(());
        }
        let look_alike = [
            (LookAlike::EndOfAProcess, &[Deed::Ended, Deed::Left][..]),
            (LookAlike::VanishedHost, &[Deed::Vanished][..]),
            (LookAlike::StoodStill, &[Deed::Paused][..]),
            (LookAlike::LateCounts, if verdict.silent_ms > 0 { &[Deed::Unheard][..] } else { &[] }),
            (LookAlike::Hostile, &[Deed::Hostile][..]),
        ]
        .into_iter()
        .find(|(kind, deeds)| {
            // Late counts of the sender only make it look as if less waited.
            let ends = if *kind == LookAlike::LateCounts { &ends[1..] } else { &ends[..] };
            ends.iter().any(|who| self.had(*who, deeds, since, scene.now))
        });
        let (kind, _) = look_alike.ok_or("nothing was done to that edge")?;
        let suspect = verdict.culprits.iter().any(|culprit| (scene.suspect)(culprit.peer));
        if kind != LookAlike::Hostile && suspect {
            return Err("an end of it is silent, which explains the edge".into());
        }
        self.count(kind);
        Ok(())
    }

    fn count(&mut self, kind: LookAlike) {
        *self.look_alikes.entry(kind).or_insert(0) += 1;
    }

    /// A peer is dropped for this reason.
    pub(crate) fn note_kick(&mut self, peer: Option<PeerId>, reason: &KickReason) {
        *self.judged.entry(format!("drop: {}", reason.code)).or_insert(0) += 1;
        if let Some(peer) = peer {
            self.kicks.insert(peer, reason.clone());
        }
    }

    /// Judges that a peer is dropped; `ring` are the others in its ring, as far as it knows.
    pub(crate) fn judge_kick(
        &mut self,
        peer: Option<PeerId>,
        who: Who,
        ring: &[Who],
        reason: &KickReason,
        now: u64,
    ) -> Result<(), String> {
        self.note_kick(peer, reason);
        if self.had(who, &[Deed::Hostile], 0, now) {
            return Ok(());
        }
        let silence = [Deed::Vanished, Deed::Paused, Deed::Unheard];
        let recently = now.saturating_sub(PEER_TIMEOUT);
        let excused = match reason.code {
            KickCode::Silent | KickCode::RegistrationTimeout => self.had(who, &silence, recently, now),
            // Judged by the checker, against the votes.
            KickCode::StateMismatch => true,
            KickCode::Unreachable | KickCode::RingTimeout => {
                let is_apart = reason.detail.as_str().contains("both are outbound-only");
                return self.judge_unreachable(who, ring, is_apart, now);
            }
            KickCode::RevisionJump | KickCode::Operator => self.had(who, &[Deed::Returned], 0, now),
            KickCode::Straggler => return self.judge_straggler(who, now),
            KickCode::Protocol => self.had(who, &[Deed::Twice], 0, now),
            _ => false,
        };
        if excused { Ok(()) } else { Err(format!("nothing was done to it that explains \"{reason}\"")) }
    }

    /// A peer without which a ring goes: one of its edges was harmed while marks against edges last, or somebody near
    /// could not take part in building the ring. If it is not to be the neighbour of another one, since nobody can dial
    /// either of them, the harmed edge may be any.
    fn judge_unreachable(&mut self, who: Who, ring: &[Who], is_apart: bool, now: u64) -> Result<(), String> {
        let since = self.reach(now.saturating_sub(MARK_EXPIRY + RING_TIMEOUT));
        let late = [Deed::Paused, Deed::Vanished, Deed::Unheard, Deed::Deaf];
        if self.had(who, &[Deed::Ended, Deed::Left], since, now) {
            self.count(LookAlike::EndOfAProcess);
            return Ok(());
        }
        if self.had(who, &late, since, now) || self.harm_near(who.0, since, now) {
            return Ok(());
        }
        if is_apart && ring.iter().any(|other| self.harm_near(other.0, since, now)) {
            return Ok(());
        }
        let near = [&late[..], &[Deed::Ended, Deed::Left, Deed::Hostile]].concat();
        if ring.iter().any(|other| self.had(*other, &near, since, now)) {
            self.count(LookAlike::RingOfADeafPeer);
            return Ok(());
        }
        Err("all of its connections could be built".into())
    }

    fn judge_straggler(&mut self, who: Who, now: u64) -> Result<(), String> {
        let since = now.saturating_sub(LONGEST_STANDSTILL * 2);
        let late = [Deed::Dozed, Deed::Paused, Deed::Unheard, Deed::Deaf, Deed::Vanished];
        if self.had(who, &late, since, now) {
            return Ok(());
        }
        let dozes = |e: &Entry<Deed>| matches!(e.what, Deed::Dozed | Deed::Hostile) && e.until >= since;
        if self.deeds.iter().any(|(other, entries)| *other != who && entries.iter().any(dozes)) {
            self.count(LookAlike::WaitedForEachOther);
            return Ok(());
        }
        Err("its application was in time".into())
    }

    /// Judges the failure of a sync for which this peer could not fetch: that was injected, or one of the sources has
    /// an excuse. Without such an excuse it happens once; then somebody goes.
    pub(crate) fn judge_fetch(&mut self, fetch: &Fetch, now: u64) -> Result<(), String> {
        if fetch.others.iter().any(|other| self.was_absent(*other, now)) {
            return Ok(());
        }
        if !self.cannot_fetch(fetch) {
            return Err("its sources could have answered".into());
        }
        // Only slow packets keep a source that beats from being heard for two beats.
        let is_late = fetch.requests.iter().any(|one| one.0 == fetch.peer && self.late_sources.contains(one));
        if is_late && self.slowest >= BEAT {
            self.count(LookAlike::LateBeats);
            return Ok(());
        }
        let times = self.vain.entry(fetch.peer).or_insert(0);
        *times += 1;
        match *times {
            1 => Ok(()),
            _ => Err("it was given a second chance already, and the others with it".into()),
        }
    }

    /// The sync of this peer was committed.
    pub(crate) fn synced(&mut self, peer: PeerId) {
        self.vain.remove(&peer);
    }

    /// Judges that a peer goes because state could not be fetched by it, or from it.
    pub(crate) fn judge_end_of_fetch(
        &mut self,
        fetch: &Fetch,
        reason: &KickReason,
        now: u64,
    ) -> Result<(), String> {
        *self.judged.entry(format!("drop: {}, no state", reason.code)).or_insert(0) += 1;
        self.kicks.insert(fetch.peer, reason.clone());
        if self.had(fetch.who, &[Deed::Hostile, Deed::NoStatePort, Deed::NoStateWay], 0, now) {
            return Ok(());
        }
        if self.cannot_fetch(fetch) || fetch.others.iter().any(|other| self.was_absent(*other, now)) {
            self.count(LookAlike::EitherEndOfAFetch);
            return Ok(());
        }
        Err("it could have fetched, and everybody from it".into())
    }

    /// Whether an end of the fetch cannot do its part, or the failure was injected.
    fn cannot_fetch(&self, fetch: &Fetch) -> bool {
        let bad = [Deed::NoStatePort, Deed::NoStateWay];
        let ends = fetch.others.iter().chain([&fetch.who]);
        fetch.requests.iter().any(|one| self.fetches.contains(one))
            || ends.into_iter().any(|who| self.had(*who, &bad, 0, u64::MAX))
    }

    fn was_absent(&self, who: Who, now: u64) -> bool {
        let gone = [
            Deed::Ended,
            Deed::Vanished,
            Deed::Paused,
            Deed::Unheard,
            Deed::Deaf,
            Deed::Left,
            Deed::Hostile,
            Deed::Twice,
        ];
        self.had(who, &gone, now.saturating_sub(LONGEST_STANDSTILL), now)
    }
}

/// The fetches that a peer had to do with in its last sync.
pub(crate) struct Fetch {
    pub(crate) peer: PeerId,
    pub(crate) who: Who,
    /// Its sources, and those who were to fetch from it.
    pub(crate) others: Vec<Who>,
    pub(crate) requests: Vec<(PeerId, RequestId)>,
}

/// A registered peer that is silent for this long is dropped.
pub(crate) const PEER_TIMEOUT: u64 = limits::DEFAULT_PEER_TIMEOUT_MS * MS;
pub(crate) const BEAT: u64 = limits::DEFAULT_BEAT_INTERVAL_MS * MS;
pub(crate) const RING_TIMEOUT: u64 = limits::DEFAULT_RING_TIMEOUT_MS * MS;
const MARK_EXPIRY: u64 = 60_000 * MS;
/// Longest time for which a run stops a process or a direction of a control connection.
pub(crate) const LONGEST_STANDSTILL: u64 = 45_000 * MS;
