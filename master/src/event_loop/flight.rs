//! The events that the flight recorder of a master keeps. They are read off the inputs and the packets, so that the
//! state machine knows nothing of the recorder.

use crate::state::{ClientKey, Input};
use pccl_flight::{Event, Recorder, Subject, What, subject_to_master, subject_to_peer};
use pccl_protocol::{
    C2m, GroupEpoch, GroupId, M2c, Name, Outcome, PeerId, Register, RunId, SyncOutcome, Verdict,
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::Arc,
};

/// Verdicts that are remembered, so that one that goes to many peers is noted once.
const RECENT_VERDICTS: usize = 16;

/// Members that the record of a ring names: thousands of records are kept.
const RING_NAMES: usize = 64;

/// One client, as far as the recorder has to know it.
#[derive(Debug)]
struct Known {
    remote: IpAddr,
    group: GroupId,
    host: Option<String>,
    name: Name,
    peer: Option<PeerId>,
    /// How its connection ended.
    away: Option<String>,
}

impl Known {
    fn new(remote: IpAddr) -> Self {
        Self { remote, group: GroupId(0), host: None, name: Name::default(), peer: None, away: None }
    }

    fn asks(&mut self, register: &Register) {
        self.group = register.group;
        self.host = register.advertised_host.as_ref().map(|host| host.as_str().to_owned());
        self.name = register.name.clone();
    }

    fn is_registered(&mut self, recorder: &Recorder, peer: PeerId) {
        self.peer = Some(peer);
        let host = self.host.take().unwrap_or_else(|| self.remote.to_string());
        let host = match self.name.as_str() {
            "" => host,
            name => format!("{name}, {host}"),
        };
        let group = u64::from(self.group.0);
        recorder.record_with(|| Event::new(What::PeerRegistered).peer(peer).count(group).text(host));
    }
}

/// Watches what goes in and out.
#[derive(Debug)]
pub(crate) struct Observer {
    recorder: Arc<Recorder>,
    clients: BTreeMap<ClientKey, Known>,
    verdicts: VecDeque<Verdict>,
    last_plan: Option<(GroupId, GroupEpoch)>,
}

impl Observer {
    pub(crate) const fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, clients: BTreeMap::new(), verdicts: VecDeque::new(), last_plan: None }
    }

    /// The run is another one than was thought, or is known now.
    pub(crate) fn identify(&self, run: RunId) {
        self.recorder.identify(run, None);
    }

    /// This master goes on for one that has died, with those who had registered there.
    pub(crate) fn recall<'a>(
        &mut self,
        registered: impl Iterator<Item = (ClientKey, PeerId, IpAddr, &'a Register)>,
    ) {
        for (client, peer, remote, register) in registered {
            let mut known = Known::new(remote);
            known.asks(register);
            known.is_registered(&self.recorder, peer);
            self.clients.insert(client, known);
        }
    }

    /// An input is about to be handled.
    pub(crate) fn input(&mut self, input: &Input) {
        match input {
            Input::Connected { client, remote, .. } => {
                self.clients.insert(*client, Known::new(*remote));
            }
            Input::Packet { client, packet } => self.packet(*client, packet),
            Input::Disconnected { client, text } => {
                let peer = self.clients.remove(client).and_then(|known| known.peer);
                self.lost(peer, text);
            }
            Input::Away { client, text, .. } => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.away = Some(text.clone());
                }
            }
            Input::Returned { client } => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.away = None;
                }
            }
            Input::LoopGap(gap) => {
                let count = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
                self.recorder.record(Event::new(What::StoodStill).count(count));
            }
            Input::Stop => self.recorder.record_with(|| Event::new(What::Note).text("told to stop")),
            _ => {}
        }
    }

    fn lost(&self, peer: Option<PeerId>, text: &str) {
        if let Some(peer) = peer {
            self.recorder.record_with(|| Event::new(What::PeerLost).peer(peer).text(text));
            self.recorder.fail(|| format!("lost peer {peer}: {text}"));
        }
    }

    fn packet(&mut self, client: ClientKey, packet: &C2m) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        if let C2m::Register(register) = packet {
            known.asks(register);
        }
        // Others than peers must not be able to push out what was recorded.
        if let Some(peer) = known.peer {
            self.recorder.record_with(|| Event {
                subject: subject_to_master(packet),
                ..Event::new(What::Received).named(packet.name()).peer(peer)
            });
        }
    }

    /// A packet is about to be queued.
    pub(crate) fn output(&mut self, client: ClientKey, packet: &M2c) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        if let M2c::Registered(registered) = packet {
            known.is_registered(&self.recorder, registered.peer);
        }
        let Some(peer) = known.peer else { return };
        self.fact(peer, packet);
        self.recorder.record_with(|| Event {
            subject: subject_to_peer(packet),
            ..Event::new(What::Sent).named(packet.name()).peer(peer)
        });
    }

    /// Records the fact in a packet that is true for more than its receiver.
    fn fact(&mut self, peer: PeerId, packet: &M2c) {
        match packet {
            M2c::Admitted(_) => self.recorder.record(Event::new(What::PeerAccepted).peer(peer)),
            M2c::Goodbye(_) => self.recorder.record(Event::new(What::PeerLeft).peer(peer)),
            M2c::Kicked(reason) => {
                self.recorder.record_with(|| {
                    let event = Event::new(What::PeerKicked).peer(peer).named(reason.code.to_string());
                    event.text(reason.detail.as_str())
                });
                self.recorder.fail(|| format!("dropped peer {peer}: {reason}"));
            }
            M2c::GroupPlan(plan) if self.last_plan != Some((plan.group, plan.epoch)) => {
                self.last_plan = Some((plan.group, plan.epoch));
                self.recorder.record_with(|| {
                    let names = plan.members.iter().take(RING_NAMES).map(|member| member.peer.to_string());
                    let mut ring: Vec<String> = names.collect();
                    if plan.members.len() > RING_NAMES {
                        ring.push(format!("{} more", plan.members.len() - RING_NAMES));
                    }
                    let event = Event::new(What::RingPlanned).about(Subject::Epoch(plan.epoch));
                    let text = format!("group {}: {}", plan.group, ring.join(" -> "));
                    event.count(plan.members.len() as u64).text(text)
                });
            }
            M2c::Outcome(outcome) => {
                if let Outcome::Aborted(verdict) = &outcome.outcome {
                    self.verdict(verdict);
                }
            }
            M2c::SyncOutcome(outcome) => {
                if let SyncOutcome::Failed(verdict) = &outcome.outcome {
                    self.verdict(verdict);
                }
            }
            _ => {}
        }
    }

    fn verdict(&mut self, verdict: &Verdict) {
        if self.verdicts.contains(verdict) {
            return;
        }
        self.verdicts.push_back(verdict.clone());
        if self.verdicts.len() > RECENT_VERDICTS {
            self.verdicts.pop_front();
        }
        self.recorder.record_with(|| Event::verdict(verdict));
        self.recorder.fail(|| verdict.to_string());
    }

    /// The connection of a client is being closed.
    pub(crate) fn closed(&mut self, client: ClientKey) {
        let known = self.clients.remove(&client);
        if let Some(Known { peer, away: Some(text), .. }) = known {
            self.lost(peer, &text);
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
