//! A thread that looks for the leader and listens to it: what it says makes a copy of all that it knows.

use crate::event_loop::replication::replay::Recalled;
use crate::journal::{Entry, FORMAT, Opening, TakeError, take};
use mio::Waker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pccl_protocol::{
    Appended, C2m, CopyId, Host, KickCode, M2c, RunId, RunKnown, StandBy, Standby, StandsBy, Term, limits,
};
use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::dial_with_preamble,
    key::{RunKey, RunKeys, SecretKey},
    preamble::{Preamble, Role},
    stream::{PacketStream, StreamBreaker},
};

/// Time to reach one master.
const REACH: Duration = Duration::from_secs(3);
/// Shortest and longest pause between two rounds.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After this time without a word the leader counts as lost.
const SILENCE: Duration = Duration::from_millis(limits::STANDBY_SILENCE_MS);

/// Where to look, and how others reach this process.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    pub(crate) masters: Vec<HostPort>,
    /// They are all masters of the run, this one among them, and the first of them begins it.
    pub(crate) is_list: bool,
    /// Which of them this one is, if the user says so.
    pub(crate) me: Option<HostPort>,
    pub(crate) keys: Option<RunKeys>,
    pub(crate) advertised_host: Option<Host>,
    pub(crate) port: u16,
}

/// A copy of what the leader knows.
pub(crate) struct Following {
    pub(crate) copy: CopyId,
    pub(crate) recalled: Box<Recalled>,
}

impl Following {
    /// A copy that the leader itself had.
    pub(crate) fn of(recalled: Box<Recalled>) -> Self {
        Self { copy: recalled.past.copies.acting, recalled }
    }
}

/// The finding at a place that may have a master.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// This process.
    Me,
    /// One that stands by, and its answer.
    StandsBy(StandsBy),
    /// One that acts, or says no.
    Acts(String),
    /// Nobody.
    Nobody(String),
}

/// This master is about to act.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intent {
    /// The round of looking for others that was under way: a later one counts.
    pub(crate) begun: u64,
    pub(crate) since: Instant,
    /// By the word of an operator.
    pub(crate) is_forced: bool,
}

/// State that the thread and the loop share.
#[derive(Default)]
pub(crate) struct Heard {
    /// Rounds that have begun in which all places are asked.
    pub(crate) begun: u64,
    /// The last round that found nobody who acts, and what was found in it.
    pub(crate) looked: u64,
    pub(crate) views: Vec<(HostPort, View)>,
    /// Since when no leader is heard.
    pub(crate) unheard_since: Option<Instant>,
    /// The run was ended in order.
    pub(crate) has_ended: bool,
    /// The last copy, complete or as far as it was when the master was heard last.
    pub(crate) following: Option<Following>,
    /// Another copy, of which it is not known whether it became complete: what says so may have been lost.
    pub(crate) other: Option<Following>,
    /// The leader, while it is heard.
    pub(crate) master: Option<HostPort>,
    /// Why it is not heard.
    pub(crate) why: String,
    /// This process asks for promises: it does not follow anybody.
    pub(crate) is_frozen: bool,
    /// This process is about to act without promises.
    pub(crate) intent: Option<Intent>,
    is_over: bool,
    breaker: Option<StreamBreaker>,
}

impl Heard {
    /// The run that this process knows. One that has nobody in it is none: there is nothing to lose.
    pub(crate) fn knows(&self) -> RunKnown {
        self.newest().map_or_else(RunKnown::default, Following::knows)
    }

    /// The copy that knows most.
    fn newest(&self) -> Option<&Following> {
        let all = [&self.following, &self.other].into_iter().flatten();
        all.max_by_key(|following| following.age())
    }

    /// That copy, to act with.
    pub(crate) fn take_newest(&mut self) -> Option<Following> {
        let is_other = self.other.as_ref().map(Following::age) > self.following.as_ref().map(Following::age);
        let (newest, older) = (self.following.take(), self.other.take());
        if is_other { older } else { newest }
    }
}

impl Following {
    /// A larger one knows more.
    fn age(&self) -> (Term, u64) {
        (self.recalled.past.copies.term, self.recalled.past.turn)
    }

    /// No member comes back to it that was told more.
    pub(crate) fn forbid_more(&mut self) {
        self.recalled.end();
        let term = self.recalled.past.copies.term;
        for place in self.recalled.places.values_mut() {
            let (before, kept) = place.queue.not_acknowledged();
            let (of_term, most) = place.at_most.unwrap_or((Term(u64::MAX), u64::MAX));
            place.at_most = Some((of_term.min(term), most.min(before + kept.len() as u64)));
        }
    }

    fn knows(&self) -> RunKnown {
        if self.recalled.state.voters().is_empty() {
            return RunKnown::default();
        }
        let (term, turn) = self.age();
        RunKnown { run: self.recalled.run(), term, turn }
    }
}

struct Desk {
    heard: Mutex<Heard>,
    changed: Condvar,
    /// Of this process.
    process: CopyId,
}

/// See the module's documentation. The thread ends with this value.
pub(crate) struct FollowerThread {
    desk: Arc<Desk>,
}

impl FollowerThread {
    /// Begins to look; with a copy, if there is one already.
    pub(crate) fn start(search: Search, following: Option<Following>, waker: Arc<Waker>) -> io::Result<Self> {
        let why = "no leader was found yet".to_owned();
        let heard = Heard { following, why, unheard_since: Some(Instant::now()), ..Heard::default() };
        let desk =
            Arc::new(Desk { heard: Mutex::new(heard), changed: Condvar::new(), process: draw_copy()? });
        let listener = Listener { search, desk: Arc::clone(&desk), waker };
        thread::Builder::new().name("pccl-standby".into()).spawn(move || listener.run())?;
        Ok(Self { desk })
    }

    /// The name of this process among masters that stand by.
    pub(crate) fn process(&self) -> CopyId {
        self.desk.process
    }

    /// The next round begins at once.
    pub(crate) fn look_now(&self) {
        self.desk.changed.notify_all();
    }

    /// The knowledge so far.
    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.desk.heard.lock()
    }
}

impl Drop for FollowerThread {
    fn drop(&mut self) {
        let mut heard = self.heard();
        heard.is_over = true;
        (heard.following, heard.other) = (None, None);
        if let Some(breaker) = heard.breaker.take() {
            breaker.break_off();
        }
        self.desk.changed.notify_all();
    }
}

struct Listener {
    search: Search,
    desk: Arc<Desk>,
    waker: Arc<Waker>,
}

impl Listener {
    fn run(self) {
        let mut pause = PAUSE.0;
        let mut hint = None;
        loop {
            let (mut heard_one, mut views) = (false, Vec::new());
            let (round, places) = self.begin_round(hint.take());
            for place in places {
                if self.is_over() {
                    return;
                }
                let view = match self.follow(&place, &mut heard_one) {
                    Ok(StandsBy { process, .. }) if process == self.desk.process => View::Me,
                    Ok(answer) => {
                        hint =
                            answer.acting.as_ref().and_then(|acting| acting.as_str().parse().ok()).or(hint);
                        View::StandsBy(answer)
                    }
                    Err(why) => {
                        self.lost(&place, &why.0);
                        if why.1 { View::Acts(why.0) } else { View::Nobody(why.0) }
                    }
                };
                views.push((place, view));
                if heard_one {
                    break;
                }
            }
            let mut heard = self.desk.heard.lock();
            if heard_one {
                pause = PAUSE.0;
            } else if !views.is_empty() && !heard.is_frozen {
                (heard.looked, heard.views) = (round, views);
                let _ = self.waker.wake();
            }
            if heard.is_over {
                return;
            }
            self.desk.changed.wait_for(&mut heard, pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn is_over(&self) -> bool {
        self.desk.heard.lock().is_over
    }

    /// Another round begins, in which all of these are asked.
    fn begin_round(&self, hint: Option<HostPort>) -> (u64, Vec<HostPort>) {
        let places = self.places(hint);
        let mut heard = self.desk.heard.lock();
        heard.begun += 1;
        (heard.begun, places)
    }

    /// Where a leader may be: where one was said to be, where those are that know the run, and where the user
    /// says.
    fn places(&self, hint: Option<HostPort>) -> Vec<HostPort> {
        let heard = self.desk.heard.lock();
        if heard.is_frozen {
            return Vec::new();
        }
        let past = heard.following.as_ref().map(|following| &following.recalled.past);
        let others = past.map(|past| past.copies.standbys.as_slice()).unwrap_or_default();
        let others = others.iter().map(place_of);
        let mut all: Vec<HostPort> = Vec::new();
        for place in hint.into_iter().chain(self.search.masters.iter().cloned()).chain(others) {
            if !all.contains(&place) && self.search.me.as_ref() != Some(&place) {
                all.push(place);
            }
        }
        all
    }

    fn lost(&self, place: &HostPort, why: &str) {
        let mut heard = self.desk.heard.lock();
        heard.breaker = None;
        heard.unheard_since.get_or_insert_with(Instant::now);
        if heard.master.take().is_some() {
            log::warn!("the leader at {place} is not heard any more: {why}");
        } else {
            log::debug!("no leader at {place}: {why}");
        }
        heard.why = format!("the master at {place} is not heard: {why}");
        drop(heard);
        // Without it the loop looks a little later.
        let _ = self.waker.wake();
    }

    /// Listens to the master at a place, until it is not heard any more. `Ok`: it does not act, and may say who does.
    /// An error says whether there is one that acts, or did.
    fn follow(&self, place: &HostPort, heard_one: &mut bool) -> Result<StandsBy, (String, bool)> {
        let nobody = |text: String| (text, false);
        let mut stream = self.reach(place).map_err(nobody)?;
        let copy = draw_copy().map_err(|error| nobody(error.to_string()))?;
        let (run, newest) = self.newest();
        let acts_soon = self.desk.heard.lock().intent.is_some();
        let Search { advertised_host, port, .. } = &self.search;
        let asked = StandBy { run, copy, advertised_host: advertised_host.clone(), port: *port, acts_soon };
        send(&mut stream, &C2m::StandBy(asked)).map_err(nobody)?;
        let mut lesson =
            Lesson { place, copy, newest, feed: Vec::new(), coming: None, turn: None, acts: false };
        let ended = self.listen(&mut stream, &mut lesson, heard_one);
        if let Some(coming) = lesson.coming {
            let mut heard = self.desk.heard.lock();
            let heard = &mut *heard;
            let slot = if heard.following.is_none() { &mut heard.following } else { &mut heard.other };
            if !heard.is_over && !heard.is_frozen {
                *slot = Some(coming);
            }
        }
        ended.map_err(|text| (text, lesson.acts))
    }

    fn listen(
        &self,
        stream: &mut PacketStream,
        lesson: &mut Lesson<'_>,
        heard_one: &mut bool,
    ) -> Result<StandsBy, String> {
        let place = lesson.place;
        loop {
            match receive(stream)? {
                M2c::Append(piece) => {
                    lesson.acts = true;
                    lesson.feed.extend_from_slice(&piece.0);
                }
                // It steps down: who goes on is not known yet.
                M2c::StandsBy(StandsBy { text, .. }) if self.hears(place) => {
                    lesson.acts = false;
                    return Err(text.to_string());
                }
                M2c::StandsBy(answer) => {
                    log::debug!("the master at {place} does not act: {}", answer.text);
                    return Ok(answer);
                }
                M2c::Kicked(reason) if reason.code == KickCode::MasterStopping => {
                    return Err(self.ended(place));
                }
                M2c::Kicked(reason) => {
                    lesson.acts = true;
                    return Err(reason.to_string());
                }
                other => return Err(format!("it sent {}, which has no place in a feed", other.name())),
            }
            let entries = self.learn(lesson)?;
            let confirmed = lesson.turn.map_or(Ok(()), |turn| {
                *heard_one = true;
                // The thread keeps all that has come, whatever becomes of this connection.
                send(stream, &C2m::Appended(Appended { turn }))
            });
            self.live_through(lesson, entries)?;
            confirmed?;
        }
    }

    fn reach(&self, place: &HostPort) -> Result<PacketStream, String> {
        let key = self.search.keys.as_ref().map(RunKeys::used);
        let preamble = Preamble { run: self.newest().0.0, ..Preamble::new(Role::Control) };
        let deadline = Instant::now() + REACH;
        let conn = dial_with_preamble(place, &preamble, key.as_ref().map(RunKey::secret), deadline);
        let stream = PacketStream::new(conn.map_err(|error| error.to_string())?, limits::MAX_PACKET_BYTES);
        let mut heard = self.desk.heard.lock();
        if heard.is_over {
            return Err("this process ends".into());
        }
        heard.breaker = Some(stream.breaker());
        drop(heard);
        Ok(stream)
    }

    fn hears(&self, place: &HostPort) -> bool {
        self.desk.heard.lock().master.as_ref() == Some(place)
    }

    /// The run that is known, and the term of its last master.
    fn newest(&self) -> (RunId, Term) {
        let heard = self.desk.heard.lock();
        let knows = heard.following.as_ref().map_or_else(RunKnown::default, Following::knows);
        (knows.run, knows.term)
    }

    /// The run has ended in order: there is nothing to take over.
    fn ended(&self, place: &HostPort) -> String {
        let mut heard = self.desk.heard.lock();
        if heard.master.as_ref() == Some(place) && !heard.is_frozen {
            log::info!("the run has ended");
            heard.has_ended = true;
            (heard.following, heard.other) = (None, None);
        }
        "its run has ended".to_owned()
    }

    /// Understands what has come.
    fn learn(&self, lesson: &mut Lesson<'_>) -> Result<Vec<Entry<'static>>, String> {
        let mut rest = lesson.feed.as_slice();
        let failed = |error: TakeError| format!("its feed cannot be understood: {error}");
        if lesson.turn.is_none()
            && let Some(opening) = take::<Opening>(&mut rest).map_err(failed)?
        {
            let Opening { format, settings, snapshot } = opening;
            if format != FORMAT {
                return Err(format!("it is of another version: {format}"));
            }
            if snapshot.past.copies.term < lesson.newest {
                return Err(format!("it acts in term {}, and that is over", snapshot.past.copies.term));
            }
            lesson.turn = Some(snapshot.past.turn);
            let (keys, mut options) = (self.search.keys.clone(), settings);
            options.state_key = keys.is_some().then(|| snapshot.origin.state_key());
            let recalled = Box::new(Recalled::begin(snapshot, options, keys)?);
            lesson.coming = Some(Following { copy: lesson.copy, recalled });
        }
        let mut entries = Vec::new();
        while lesson.turn.is_some()
            && let Some(entry) = take::<Entry<'static>>(&mut rest).map_err(failed)?
        {
            if let (Entry::Turn { .. }, Some(turn)) = (&entry, &mut lesson.turn) {
                *turn += 1;
            }
            entries.push(entry);
        }
        let left = rest.len();
        lesson.feed.drain(..lesson.feed.len() - left);
        Ok(entries)
    }

    /// Makes the copy of it. Once that is on the list of complete ones, it takes the place of the one before.
    fn live_through(&self, lesson: &mut Lesson<'_>, entries: Vec<Entry<'static>>) -> Result<(), String> {
        let mut heard = self.desk.heard.lock();
        if heard.is_frozen {
            return Err("this master asks for promises itself".into());
        }
        for entry in entries {
            let is_listed = match &entry {
                Entry::Copies(list) => list.standbys.iter().any(|standby| standby.copy == lesson.copy),
                _ => false,
            };
            let following = match &mut lesson.coming {
                Some(coming) => coming,
                None => heard.following.as_mut().ok_or("this process ends")?,
            };
            following.recalled.live_through(entry);
            if is_listed && lesson.coming.is_some() {
                log::info!(
                    "stands by for the master at {}: the copy {} is complete",
                    lesson.place,
                    lesson.copy
                );
                (heard.following, heard.other) = (lesson.coming.take(), None);
                heard.master = Some(lesson.place.clone());
                (heard.unheard_since, heard.has_ended) = (None, false);
                let _ = self.waker.wake();
            }
        }
        Ok(())
    }
}

/// The knowledge that has come from one master.
struct Lesson<'a> {
    place: &'a HostPort,
    copy: CopyId,
    /// A master that acts in an older term is not listened to.
    newest: Term,
    /// Bytes that are not understood yet.
    feed: Vec<u8>,
    /// The copy that is not on the list of complete ones yet.
    coming: Option<Following>,
    /// The last turn of the master that has come; none before all that it knew has.
    turn: Option<u64>,
    /// There is a master that acts, or did.
    acts: bool,
}

fn place_of(standby: &Standby) -> HostPort {
    HostPort::new(standby.hosts.as_str(), standby.port)
}

/// A new identity for a copy.
pub(crate) fn draw_copy() -> io::Result<CopyId> {
    let random = SecretKey::generate()?;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&random.bytes()[..8]);
    // 0 stands for "none".
    Ok(CopyId(u64::from_be_bytes(bytes).max(1)))
}

fn send(stream: &mut PacketStream, packet: &C2m) -> Result<(), String> {
    let sent = stream.send_bytes(&packet.to_frame(), Instant::now() + REACH);
    sent.map_err(|error| error.to_string())
}

fn receive(stream: &mut PacketStream) -> Result<M2c, String> {
    let (kind, body) = stream.recv_packet(Instant::now() + SILENCE).map_err(|error| error.to_string())?;
    M2c::from_frame(kind, &body).map_err(|error| error.to_string())
}
