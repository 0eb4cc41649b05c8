//! A master that stands by acts without the promises of others: the first of a list of masters when there is no run, or
//! any at the word of an operator, when those who could promise are lost.
//!
//! Both say first that they are about to, and ask all masters that they know. So of two that are about to at the same
//! time, and reach each other, one at least hears of the other and does not. A standby that is asked for promises by
//! then answers that it acts soon; any other one asks for none until it hears what has become of it.

use crate::event_loop::EventLoop;
use crate::event_loop::replication::follower_side::{Following, Heard, Intent, View, draw_copy};
use crate::event_loop::replication::standby::Standing;
use crate::leadership::Leader;
use pccl_protocol::{
    CopyId, RunId, StandBy, StandsBy, Term,
    limits::{MAX_STANDBYS, STANDBY_ADVICE_MS},
};
use std::time::{Duration, Instant};
use tinysockets::address::HostPort;

/// How long the first of a list waits for those that it does not reach, before it begins a run.
const UNREACHED: Duration = Duration::from_secs(10);
/// How long an operator waits until others were looked for.
const LOOK: Duration = Duration::from_secs(55);
/// Rounds of asking all others. One that begins to act closes its connections, and looks like nobody in one of them.
const ROUNDS: u64 = 2;
/// Nobody acts: after this time it is said what to do, and then again.
const ADVICE: Duration = Duration::from_millis(STANDBY_ADVICE_MS);
/// Terms that others may have asked for in vain, and which members may know, are below that of a forced take-over.
const TERMS: u64 = 1000;

impl Standing {
    fn intend(&mut self, is_forced: bool) {
        let mut heard = self.follower.heard();
        heard.intent = Some(Intent { begun: heard.begun, since: Instant::now(), is_forced });
        drop(heard);
        self.follower.look_now();
    }

    /// The findings at all places but this one.
    fn others<'a>(&self, heard: &'a Heard) -> impl Iterator<Item = (&'a HostPort, &'a View)> {
        heard.views.iter().filter(|(_, view)| !matches!(view, View::Me)).map(|(place, view)| (place, view))
    }

    /// The entry of the list that is this master.
    fn me<'a>(&'a self, heard: &'a Heard) -> Option<&'a HostPort> {
        let seen = heard.views.iter().find(|(_, view)| matches!(view, View::Me)).map(|(place, _)| place);
        self.search.me.as_ref().or(seen)
    }

    /// Whether it is for this master to begin a run, and nothing that was found speaks against it.
    fn is_to_begin(&self, heard: &Heard, now: Instant) -> bool {
        let is_first =
            self.search.is_list && self.me(heard).is_some_and(|me| self.search.masters.first() == Some(me));
        let knows_none = self.own.fresh.is_some() && heard.knows().run == RunId(0) && !heard.has_ended;
        let waited =
            heard.unheard_since.is_some_and(|since| now.saturating_duration_since(since) >= UNREACHED);
        let agrees = |view: &View| match view {
            View::StandsBy(other) => {
                other.knows.run == RunId(0) && !other.acts_soon && other.acting.is_none()
            }
            View::Nobody(_) => waited,
            View::Me => true,
            View::Acts(_) => false,
        };
        is_first && knows_none && heard.looked > 0 && self.others(heard).all(|(_, view)| agrees(view))
    }

    /// Why this master must not act at an operator's word.
    fn objection(&self, heard: &Heard) -> Option<String> {
        let own = heard.knows();
        if own.run == RunId(0) && self.own.fresh.is_none() {
            return Some("this master knows no run, and cannot begin one".into());
        }
        self.others(heard).find_map(|(place, view)| {
            let StandsBy { acting, acts_soon, knows, .. } = match view {
                View::Acts(text) => return Some(format!("there is a master at {place}: {text}")),
                View::Me | View::Nobody(_) => return None,
                View::StandsBy(answer) => answer,
            };
            if let Some(acting) = acting {
                return Some(format!("the master at {acting} acts, as the one at {place} says"));
            }
            if *acts_soon {
                return Some(format!("the master at {place} is about to act as well"));
            }
            let (run, term, turn) = (knows.run, knows.term, knows.turn);
            if run.0 != 0 && own.run == RunId(0) {
                return Some(format!("this master knows no run, and the one at {place} knows run {run}: use that one"));
            }
            (run == own.run && (term, turn) > (own.term, own.turn)).then(|| {
                format!(
                    "the master at {place} knows more: turn {turn} of term {term}, and this one turn {} of term {}: \
                     use that one",
                    own.turn, own.term
                )
            })
        })
    }

    /// Advice on what to start, and where, once nobody has acted for a while.
    pub(crate) fn advice(&self, heard: &Heard) -> Option<String> {
        let since = heard.unheard_since.filter(|_| heard.master.is_none())?;
        if since.elapsed() < ADVICE {
            return None;
        }
        const FORCE: &str = "`pccl-master take-over --force` on this machine";
        let found: Vec<String> = self.others(heard).map(describe).collect();
        let what = match (heard.knows().run != RunId(0), self.search.is_list, self.me(heard)) {
            (true, ..) if self.missing().is_some_and(|missing| !missing.is_empty()) => {
                format!("if the missing members are lost for good, {FORCE} goes on without them")
            }
            (true, ..) => format!(
                "start the master again that acted last; if that is lost, and more than half of the members with it, \
                 {FORCE} goes on without them"
            ),
            (false, true, None) => {
                "none of the list of masters is this one, as far as it sees: name its entry with --me"
                    .to_owned()
            }
            (false, true, Some(me)) if Some(me) == self.search.masters.first() => {
                format!(
                    "this master begins a run when all others say that they know none; {FORCE} begins one now"
                )
            }
            (false, true, _) => {
                let first = self.search.masters.first().map(ToString::to_string).unwrap_or_default();
                format!(
                    "the first of the list, {first}, begins a run: start that one; {FORCE} begins one here"
                )
            }
            (false, false, _) => format!(
                "start one of these masters without --standby-of (and with --accept-standbys), or all of them with \
                 the same --masters; {FORCE} begins a run here"
            ),
        };
        let seconds = since.elapsed().as_secs();
        Some(format!("no leader for {seconds} s ({}): {what}", found.join("; ")))
    }
}

fn describe((place, view): (&HostPort, &View)) -> String {
    match view {
        View::StandsBy(other) if other.knows.run == RunId(0) => format!("{place} stands by and knows no run"),
        View::StandsBy(other) => format!("{place} stands by and knows run {}", other.knows.run),
        View::Acts(text) | View::Nobody(text) => format!("{place}: {text}"),
        View::Me => format!("{place} is this one"),
    }
}

impl EventLoop {
    /// An operator wants this master to act. `Err`: at once, why it does not.
    pub(crate) fn force(&mut self) -> Result<(), String> {
        let Some(standing) = &mut self.standing else { return Err("this master acts already".into()) };
        if let Some(place) = &standing.follower.heard().master {
            return Err(format!("the master at {place} acts"));
        }
        standing.intend(true);
        Ok(())
    }

    /// Another master that looks around is about to act without promises, or is not any more.
    pub(crate) fn note_intent_of_other(&mut self, key: u64, asked: &StandBy) {
        let (Some(standing), Some(conn)) = (&mut self.standing, self.conns.get(&key)) else { return };
        let host =
            asked.advertised_host.as_ref().map_or_else(|| conn.remote.ip().to_string(), ToString::to_string);
        let place = HostPort::new(&host, asked.port).to_string();
        if !asked.acts_soon {
            standing.yields_to.remove(&place);
        } else if standing.yields_to.len() < MAX_STANDBYS && standing.yields_to.insert(place.clone()) {
            log::info!(
                "the master at {place} is about to act without promises: this one asks for none until it does"
            );
        }
    }

    /// Acts without promises if this master is about to, and has looked for others since. Whether it does.
    pub(crate) fn act_without_promises(&mut self) -> bool {
        let Some(standing) = &mut self.standing else { return false };
        let now = Instant::now();
        let mut heard = standing.follower.heard();
        let Some(intent) = heard.intent else {
            let begins = standing.is_to_begin(&heard, now);
            drop(heard);
            if begins {
                standing.intend(false);
            }
            return false;
        };
        let rounds = heard.looked.saturating_sub(intent.begun);
        let is_late = intent.is_forced && now.duration_since(intent.since) >= LOOK;
        let objection = match (&heard.master, rounds) {
            (Some(place), _) => Some(format!("the master at {place} acts")),
            (None, 1..) if intent.is_forced => standing.objection(&heard),
            (None, 1..) => (!standing.is_to_begin(&heard, now)).then(String::new),
            (None, 0) => None,
        };
        let unsure = || "it could not be found out in time whether another one acts".to_owned();
        let objection = objection.or_else(|| (is_late && rounds < ROUNDS).then(unsure));
        if let Some(text) = objection {
            drop(heard);
            self.give_up_intent(intent, text);
            return false;
        }
        if rounds < ROUNDS {
            return false;
        }
        // From now on it follows nobody.
        heard.is_frozen = true;
        let unreached: Vec<String> = standing
            .others(&heard)
            .filter(|(_, view)| matches!(view, View::Nobody(_)))
            .map(|(place, _)| place.to_string())
            .collect();
        drop(heard);
        self.carry_through(intent, &unreached);
        true
    }

    fn give_up_intent(&mut self, intent: Intent, text: String) {
        if let Some(standing) = &mut self.standing {
            standing.follower.heard().intent = None;
        }
        if intent.is_forced {
            log::warn!("an operator wants this master to act, and it does not: {text}");
            self.answer_operator(Err(text));
        }
    }

    fn carry_through(&mut self, intent: Intent, unreached: &[String]) {
        let Some(standing) = &mut self.standing else { return };
        let knows = standing.follower.heard().knows();
        let unreached = match unreached {
            [] => String::new(),
            some => {
                format!("; not reached, so not to be started again with an old journal: {}", some.join(", "))
            }
        };
        if knows.run == RunId(0) {
            let Ok(copy) = draw_copy() else { return };
            self.begin_run_from_standing(copy);
            let text = format!("this master begins run {}{unreached}", self.run);
            log::info!("{text}");
            return self.answer_operator(Ok(text));
        }
        let missing: Vec<String> =
            standing.missing().into_iter().flatten().map(|peer| peer.to_string()).collect();
        let term = Term(standing.newest_term().max(knows.term).0 + TERMS);
        let mut copy = standing.follower.heard().take_newest();
        // A member that has had more packets than this copy knows of knows what is lost now.
        copy.iter_mut().for_each(Following::forbid_more);
        debug_assert!(intent.is_forced);
        self.become_leader(copy, |copy, past| Leader::force(term, copy, past));
        let text = format!(
            "this master acts in term {term}, from turn {} of term {}; what was done later is lost, and members that \
             know of it are dropped and have to connect again; missing: {}{unreached}",
            knows.turn,
            knows.term,
            if missing.is_empty() { "nobody that is known".to_owned() } else { missing.join(", ") }
        );
        log::warn!("an operator's word: {text}");
        self.answer_operator(Ok(text));
    }

    fn begin_run_from_standing(&mut self, copy: CopyId) {
        let Some(standing) = self.standing.take() else { return };
        let super::standby::Own { fresh, journal, keys } = standing.own;
        let Some(fresh) = fresh else { return };
        // Every process that has connected hears of this one when it asks again.
        let keys_of_conns: Vec<u64> = self.conns.keys().copied().collect();
        keys_of_conns.into_iter().for_each(|key| drop(self.remove(key)));
        self.begin_run(fresh, copy, keys, Some(journal));
        self.go_on();
    }

    /// In the log: what to start, as long as nobody acts.
    pub(crate) fn say_that_nobody_acts(&mut self) {
        let Some(standing) = &mut self.standing else { return };
        let now = Instant::now();
        if standing.next_advice.is_some_and(|next| now < next) {
            return;
        }
        let advice = standing.advice(&standing.follower.heard());
        if let Some(advice) = advice {
            log::warn!("{advice}");
            standing.next_advice = Some(now + ADVICE);
        }
    }
}
