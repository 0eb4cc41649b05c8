//! Reports of members about their edges, and what becomes of them.

use super::all_groups::Groups;
use super::edges::{Complaint, EdgeEnds, HeldFault, Mark, Severity};
use super::group::Group;
use super::in_flight::Missing;
use super::losses::BrokenEdge;
use crate::state::membership::black_holes::LET_LARGE_PACKETS_PASS;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    Algorithm, BusyEdge, EdgeFault, EdgeReport, KickCode, KickReason, OpId, PeerId, Purpose, StalledEdge,
    Text, limits,
};
use std::collections::BTreeSet;
use std::time::Duration;
use tinysockets::{link::after_rest, place::SHORT_SEGMENT_BYTES};

/// The judgement on a held report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Judgement {
    /// One end may be dead, which would explain it: wait for a sign of life or for its end. Or it could not be built,
    /// and the members are asked whom they reach.
    Hold,
    /// One end has gone, and the edge with it.
    Obsolete,
    /// New connections; the mark says what is remembered against the edge.
    Rebuild(Severity),
}

impl Group {
    /// A report must name edges of the reporter, and of the plan that it works on.
    pub(crate) fn admit_edge_report(&self, id: PeerId, report: &EdgeReport) -> Result<(), KickReason> {
        let refuse = |text: String| Err(KickReason::new(KickCode::Protocol, text));
        if report.epoch > self.epoch {
            let text = format!("reported on plan {}, but the present one is {}", report.epoch, self.epoch);
            return refuse(text);
        }
        let broken = report.broken.iter().map(|fault| (fault.from, fault.to, fault.generation));
        for (from, to, generation) in
            report.up.iter().map(|name| (name.from, name.to, name.generation)).chain(broken)
        {
            let is_planned = || self.net.edges.named((from, to), generation).is_some();
            if (from != id && to != id) || (report.epoch == self.epoch && !is_planned()) {
                return refuse(format!(
                    "reported the edge {from} -> {to}, which is not its own edge of plan {}",
                    report.epoch
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn record_edge_report(
        &mut self,
        roll: &Roll,
        out: &mut Outbox,
        id: PeerId,
        report: EdgeReport,
    ) {
        // A ring of which an edge is missing is no news to anybody.
        let whole = report.up.iter().filter(|name| self.net.edges.note_up(id, name)).count() > 0;
        out.changed |= whole || !report.broken.is_empty();
        self.work.ops.change_timed();
        for fault in report.broken {
            self.record_fault(roll, out, id, fault);
        }
    }

    fn record_fault(&mut self, roll: &Roll, out: &mut Outbox, id: PeerId, fault: EdgeFault) {
        let ends = (fault.from, fault.to);
        let stood = self.net.edges.is_up_at(id, ends);
        let Some(edge) = self.net.edges.named(ends, fault.generation) else { return };
        if fault.forgotten {
            return self.renew_edge(roll, out, &fault);
        }
        if edge.purpose == Purpose::Ring {
            let complaint =
                Complaint { text: fault.text, unbuildable: !stood, stalled_ms: 0, segment_bytes: 0 };
            self.net.edges.hold(ends, fault.generation, complaint, roll.now);
            return;
        }
        let purpose = edge.purpose;
        self.net.edges.take_held(ends, |_| true);
        self.fault_beside_ring(roll, out, purpose, (&fault, 0));
    }

    /// An edge was lost while it was idle. It gets new connections, together with others of which the same is said, and
    /// nothing is held against it: neither of its ends nor the path has failed.
    fn renew_edge(&mut self, roll: &Roll, out: &mut Outbox, fault: &EdgeFault) {
        let ends = (fault.from, fault.to);
        self.net.edges.note_failed(ends, fault.generation);
        self.next.is_due = true;
        out.info(format!("{} is built anew: {}", roll.name_of_edge(ends), fault.text));
    }

    /// An edge of the mesh or between a pair has failed, with for how long nothing had moved on it.
    fn fault_beside_ring(
        &mut self,
        roll: &Roll,
        out: &mut Outbox,
        purpose: Purpose,
        (fault, stalled_ms): (&EdgeFault, u64),
    ) {
        match purpose {
            Purpose::Ring => {}
            Purpose::Mesh => self.mesh_fault(roll, out, fault, stalled_ms),
            Purpose::Pair => self.pair_fault(roll, out, fault, stalled_ms),
        }
    }

    /// A peer says on which edges it takes nothing, because it is at work on what has come.
    pub(crate) fn record_busy(&mut self, roll: &Roll, id: PeerId, busy: &[BusyEdge]) {
        for edge in busy.iter().filter(|edge| edge.busy_ms < limits::BUSY_PATIENCE_MS) {
            if let Some(edge) = self.net.edges.named_mut((edge.from, id), edge.generation) {
                edge.busy_at = Some(roll.now);
            }
        }
    }

    /// A peer says on which of its edges bytes wait and do not move, or bytes are missing at the other end. If that
    /// lasts, while both ends live, the edge counts as broken.
    pub(crate) fn record_stalls(
        &mut self,
        roll: &Roll,
        id: PeerId,
        stalled: &[StalledEdge],
        missing: &[Missing],
    ) {
        let waiting = stalled.iter().map(|stall| {
            let mut text = format!("bytes wait on it and none moved for {} ms", stall.stalled_ms);
            if stall.idle_ms > 0 {
                text = format!("{text}; {}", after_rest(Duration::from_millis(stall.idle_ms)));
            }
            (stall.to, stall.generation, (stall.stalled_ms, stall.segment_bytes), text)
        });
        let missing = missing.iter().map(|missing| {
            let stalled_ms = u64::try_from(missing.stalled.as_millis()).unwrap_or(u64::MAX);
            let text = format!(
                "{} bytes that were sent have not arrived, and none moved for {stalled_ms} ms",
                missing.bytes
            );
            // They were acknowledged: packets of their size pass.
            (missing.to, missing.generation, (stalled_ms, 0), text)
        });
        let limit = roll.options.edge_timeout.as_millis();
        let mut stuck = BTreeSet::new();
        for (to, generation, (stalled_ms, segment_bytes), text) in waiting.chain(missing) {
            if u128::from(stalled_ms) < limit || roll.suspect(to) {
                continue;
            }
            let text = Text::new(text);
            let complaint = Complaint { text, unbuildable: false, stalled_ms, segment_bytes };
            if self.net.edges.hold((id, to), generation, complaint, roll.now) {
                stuck.insert(to);
            }
        }
        // Whatever else stood still moves again, or is explained by the silence of the other end.
        let held: Vec<EdgeEnds> = self.net.edges.held().map(|(ends, _)| ends).collect();
        for ends in held.into_iter().filter(|ends| ends.0 == id) {
            let is_over = |fault: &mut HeldFault| fault.stalled_ms > 0 && !stuck.contains(&ends.1);
            if self.net.edges.take_held(ends, is_over).is_some() {
                // Somebody may wait for just this edge.
                self.work.ops.change_timed();
            }
        }
    }

    /// When the report about an edge can be judged; `None` while only news from one of its ends can tell.
    pub(crate) fn fault_deadline(&self, roll: &Roll, ends: EdgeEnds) -> Option<Timestamp> {
        let fault = self.net.edges.get(ends)?.held()?;
        let due = self.fault_due(roll, ends, fault);
        if fault.unbuildable {
            return self.reach.check.is_none().then_some(due);
        }
        (due > roll.now || self.judge(roll, ends, fault) != Judgement::Hold).then_some(due)
    }

    /// From when on a report may be judged. A standstill counts only from when neither end was suspect any more, nor
    /// the receiving end at work on what had come: what had stood still before may be the fault of an end that had
    /// stopped, or waited for its device, and bytes may take a moment to move again.
    fn fault_due(&self, roll: &Roll, ends: EdgeEnds, fault: &HeldFault) -> Timestamp {
        let grace = fault.since + roll.options.edge_grace;
        if fault.stalled_ms == 0 {
            return grace;
        }
        let lively = [ends.0, ends.1].iter().filter_map(|id| Some(roll.peers.get(id)?.lively_since)).max();
        let busy = self.net.edges.get(ends).and_then(|edge| edge.busy_at);
        let due = lively.max(busy).map_or(fault.since, |since| since + roll.options.edge_timeout);
        // Nobody loses anything if an edge beside the ring is given up: there is no grace.
        if self.net.edges.ring_has_ends(ends) { due.max(grace) } else { due }
    }

    fn judge(&self, roll: &Roll, ends: EdgeEnds, fault: &HeldFault) -> Judgement {
        let (Some(_), Some(to)) = (roll.peers.get(&ends.0), roll.peers.get(&ends.1)) else {
            return Judgement::Obsolete;
        };
        let before =
            self.net.edges.marks.get(&ends).filter(|mark| mark.until > roll.now).map(|mark| mark.severity);
        if fault.stalled_ms > 0 {
            let is_heard = match self.net.edges.ring_has_ends(ends) {
                true => to.heard_at >= fault.since,
                // At once, if it has been heard a short time ago.
                false => roll.now.since(to.heard_at) <= roll.options.beat_interval * 2,
            };
            // The receiving end may have stopped: then it is not the edge, and its silence will tell.
            if roll.suspect(ends.0) || roll.suspect(ends.1) || !is_heard {
                return Judgement::Hold;
            }
            // It is built anew once. If that fails too, no ring has it.
            return Judgement::Rebuild(before.map_or(Severity::Failed, |s| s.max(Severity::Avoided)));
        }
        if fault.unbuildable {
            return Judgement::Hold;
        }
        Judgement::Rebuild(before.map_or(Severity::Broke, |_| Severity::Avoided))
    }

    /// An edge that could not be built. If nobody finds anything wrong with it, it is tried once more.
    pub(crate) fn give_up_edge(&mut self, roll: &Roll, out: &mut Outbox, ends: EdgeEnds, is_known: bool) {
        let marks = &self.net.edges.marks;
        let before = marks.get(&ends).filter(|mark| mark.until > roll.now).map(|mark| mark.severity);
        let again = !is_known && before < Some(Severity::Failed);
        let severity = if again { Severity::Failed } else { Severity::Forbidden };
        self.apply_judgement(roll, out, ends, Judgement::Rebuild(severity));
    }

    /// Whether a standstill shows for the first time that the path drops large packets. Then what is built between the
    /// two from now on has short segments, and the fault says so.
    fn finds_black_hole(
        &mut self,
        roll: &Roll,
        out: &mut Outbox,
        ends: EdgeEnds,
        fault: &mut HeldFault,
    ) -> bool {
        let HeldFault { stalled_ms, segment_bytes, .. } = *fault;
        if stalled_ms == 0 || segment_bytes == 0 {
            return false;
        }
        let is_new = self.net.edges.black_holes.note_standstill(ends);
        let mut text =
            format!("{}, and segments of {segment_bytes} bytes are sent again in vain", fault.text);
        if is_new {
            let (one, other) = (roll.name_of(ends.0), roll.name_of(ends.1));
            let found = format!(
                "large packets do not pass between {one} and {other}, and small ones do (MTU): {LET_LARGE_PACKETS_PASS}"
            );
            out.warn(format!(
                "{found}. Connections between the two have segments of at most {SHORT_SEGMENT_BYTES} bytes from now on"
            ));
            text += &format!("; {found}");
            // The edge that goes the other way would stand still next.
            if let Some(back) = self.net.edges.get_mut((ends.1, ends.0)) {
                back.rebuild |= back.purpose == Purpose::Ring;
            }
        }
        fault.text = Text::new(text);
        is_new
    }

    fn apply_judgement(&mut self, roll: &Roll, out: &mut Outbox, ends: EdgeEnds, judgement: Judgement) {
        let until = roll.now + roll.options.forbidden_expiry;
        let Some(mut fault) = self.net.edges.take_held(ends, |_| true) else { return };
        let Judgement::Rebuild(mut severity) = judgement else { return };
        if self.finds_black_hole(roll, out, ends, &mut fault) {
            // It has not been tried in this way.
            severity = severity.min(Severity::Failed);
        }
        let Some(edge) = self.net.edges.get_mut(ends) else { return };
        if edge.purpose != Purpose::Ring {
            let (purpose, generation) = (edge.purpose, edge.generation);
            let named =
                EdgeFault { from: ends.0, to: ends.1, generation, forgotten: false, text: fault.text };
            return self.fault_beside_ring(roll, out, purpose, (&named, fault.stalled_ms));
        }
        edge.rebuild = true;
        let (edge_generation, served) = (edge.generation, edge.since);
        let text = fault.text.to_string();
        let severity = self.net.edges.marks.get(&ends).map_or(severity, |mark| mark.severity.max(severity));
        self.net.edges.marks.insert(ends, Mark { until, severity, text: fault.text });
        // An edge goes on from ring to ring or is built anew. One that was of the mesh before carried what used that.
        let is_user = |id: OpId, algorithm: Algorithm| {
            let is_old = edge_generation.0 <= id.epoch.0 && algorithm.uses_mesh();
            id.tag.pair.is_none() && (served <= id.epoch || is_old)
        };
        let broken = BrokenEdge {
            ends,
            generation: edge_generation,
            stalled_ms: fault.stalled_ms,
            is_final: fault.stalled_ms > 0,
            text: Text::new(text.clone()),
        };
        self.work.note_broken(&broken, is_user);
        self.next.is_due = true;
        let edge = roll.name_of_edge(ends);
        out.warn(format!("{edge} failed ({severity:?}): {text}"));
    }
}

impl Groups {
    /// Rule: reports that were held long enough are judged.
    pub(crate) fn judge_faults(&mut self, roll: &Roll, out: &mut Outbox) -> bool {
        let mut due = Vec::new();
        for (group_id, group) in self.iter() {
            for (ends, fault) in group.net.edges.held() {
                let judgement = group.judge(roll, ends, fault);
                if judgement != Judgement::Hold && group.fault_due(roll, ends, fault) <= roll.tick {
                    due.push((*group_id, ends, judgement));
                }
            }
        }
        for (group_id, ends, judgement) in &due {
            if let Some(group) = self.get_mut(group_id) {
                group.apply_judgement(roll, out, *ends, *judgement);
            }
        }
        !due.is_empty()
    }
}
