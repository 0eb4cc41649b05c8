//! A master that was started as the first one, without a list, beside others that know a run: its own would be a second
//! one. As long as nobody is in that, and those others are heard, it takes no newcomers and does not say that it acts.

use crate::event_loop::EventLoop;
use crate::event_loop::connections::frame::frame;
use pccl_protocol::{M2c, RunId, RunKnown, StandsBy, Text};
use std::time::{Duration, Instant};
use tinysockets::address::HostPort;

/// Others say every few seconds that they know another run; after this silence they are gone.
const SILENCE: Duration = Duration::from_secs(15);

/// The word of another master that knows another run.
#[derive(Debug)]
pub(crate) struct SecondRun {
    knows: RunKnown,
    place: HostPort,
    heard: Instant,
}

impl EventLoop {
    /// A master at this place knows another run.
    pub(crate) fn note_other_run(&mut self, run: RunId, place: HostPort) {
        let text = format!("the master at {place} knows run {run}, and this one began run {}", self.run);
        if !self.state.voters().is_empty() {
            return log::error!(
                "{text}, which peers are in: there are two runs; end one of them with `end-run`"
            );
        }
        let knows = RunKnown { run, ..RunKnown::default() };
        let known = self.second_run.replace(SecondRun { knows, place, heard: Instant::now() });
        if known.is_none() {
            log::error!("{text}; it takes nobody in: {}", Self::REMEDY);
        }
    }

    const REMEDY: &str = "start it again with --standby-of that one, or all masters with the same --masters; if the \
                          other run is over, stop the masters that know it";

    /// Why this master takes nobody in, if its run is a second one.
    pub(crate) fn is_second_run(&self) -> Option<String> {
        let other = self.second_run.as_ref().filter(|other| other.heard.elapsed() < SILENCE)?;
        let SecondRun { knows, place, .. } = other;
        let is_empty = self.state.voters().is_empty();
        is_empty.then(|| {
            let run = knows.run;
            format!("the master at {place} knows run {run}, so this one begins none: {}", Self::REMEDY)
        })
    }

    /// A newcomer is sent to the other run, which it may have in its list of masters.
    pub(crate) fn send_to_other_run(&mut self, key: u64) {
        let text = self.is_second_run().unwrap_or_default();
        let acting = self.second_run.as_ref().map(|other| Text::new(other.place.to_string()));
        let answer = StandsBy {
            acting,
            keeps: false,
            gives_back: Vec::new(),
            process: self.copy(),
            knows: RunKnown::default(),
            acts_soon: false,
            text: Text::new(text),
        };
        self.tell_ahead(key, frame(&M2c::StandsBy(answer)));
        self.close(key);
    }
}
