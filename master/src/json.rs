//! The status of a run as JSON, for programs.

use pccl_protocol::{
    CollectiveId, EdgeRate, FetchProgress, Figure, PeerId, RelayedPair, Standby, Status, StatusGroup,
    StatusJournal, StatusLead, StatusPeer, StatusRelay, StatusWait,
    json::{list, object, text},
};

/// A status as one line of JSON, without a line end. Identities are strings of 32 hexadecimal digits, times are in
/// milliseconds; `operation` and `fetch` are null or objects; `figures` has a number of each name that a peer has
/// reported, null for one that is infinite or none. Fields may be added in later versions, none is ever renamed.
pub fn status_to_json(status: &Status) -> String {
    let sizes = &status.sizes;
    object(&[
        ("run", text(&status.run.to_string())),
        ("uptime_ms", status.uptime_ms.to_string()),
        ("run_keys", status.run_keys.to_string()),
        ("wire", status.wire.map_or("null".to_owned(), |mode| text(mode.name()))),
        ("trusted_seeders", list(status.trusted_seeders.iter().map(|name| text(name.as_str())))),
        ("world_epoch", sizes.world_epoch.to_string()),
        ("world_size", sizes.global.to_string()),
        ("min_world_size", sizes.min_world.to_string()),
        ("largest_group", sizes.largest_group.to_string()),
        ("groups", list(status.groups.iter().map(group))),
        ("peers", list(status.peers.iter().map(peer))),
        ("waits", list(status.waits.iter().map(wait))),
        ("relay", status.relay.as_ref().map_or("null".to_owned(), relay)),
        ("lead", lead(&status.lead)),
        ("journal", status.lead.journal.as_ref().map_or("null".to_owned(), journal)),
    ])
}

fn journal(journal: &StatusJournal) -> String {
    object(&[
        ("state", text(&journal.stage.to_string())),
        ("since_ms", journal.since_ms.to_string()),
        ("text", journal.text.as_ref().map_or("null".to_owned(), |words| text(words.as_str()))),
    ])
}

fn lead(lead: &StatusLead) -> String {
    let place = |standby: &Standby| text(&standby.hosts.listed(standby.port));
    object(&[
        ("term", lead.term.to_string()),
        ("acts", lead.acts.to_string()),
        ("standbys", list(lead.standbys.iter().map(place))),
        ("text", lead.text.as_ref().map_or("null".to_owned(), |words| text(words.as_str()))),
    ])
}

fn relay(relay: &StatusRelay) -> String {
    let id = |peer: PeerId| text(&format!("{peer:#}"));
    let pair = |pair: &RelayedPair| object(&[("from", id(pair.from)), ("to", id(pair.to))]);
    object(&[
        ("port", relay.port.to_string()),
        ("mbit_per_s", relay.mbit_per_s.to_string()),
        ("bytes", relay.bytes.to_string()),
        ("pairs", list(relay.pairs.iter().map(pair))),
    ])
}

fn group(group: &StatusGroup) -> String {
    object(&[
        ("group", group.group.to_string()),
        ("epoch", group.epoch.to_string()),
        ("connected", group.connected.to_string()),
        ("ring", list(group.ring.iter().map(|peer| text(&format!("{peer:#}"))))),
        ("revision", group.revision.map_or("null".to_owned(), |revision| revision.to_string())),
        ("slowest_edge", group.slowest.map_or("null".to_owned(), |edge| self::edge(&edge))),
        ("schedule", text(&group.schedule.to_string())),
    ])
}

fn edge(edge: &EdgeRate) -> String {
    object(&[
        ("from", text(&format!("{:#}", edge.from))),
        ("to", text(&format!("{:#}", edge.to))),
        ("kbit_s", edge.kbit_s.to_string()),
    ])
}

fn peer(peer: &StatusPeer) -> String {
    let operation = peer.operation.map_or("null".to_owned(), |CollectiveId { kind, op }| {
        object(&[
            ("collective", text(kind.text())),
            ("tag", op.tag.number.to_string()),
            ("from", op.tag.pair.map_or("null".to_owned(), |pair| text(&format!("{:#}", pair.from)))),
            ("to", op.tag.pair.map_or("null".to_owned(), |pair| text(&format!("{:#}", pair.to)))),
            ("epoch", op.epoch.to_string()),
            ("attempt", op.attempt.to_string()),
        ])
    });
    object(&[
        ("peer", text(&format!("{:#}", peer.peer))),
        ("host", text(peer.host.as_str())),
        ("name", text(peer.name.as_str())),
        ("p2p_port", peer.p2p_port.to_string()),
        ("state_port", peer.state_port.to_string()),
        ("group", peer.group.to_string()),
        ("phase", text(&peer.stage.to_string())),
        ("call", text(&peer.call.to_string())),
        ("call_ms", peer.call_ms.to_string()),
        ("silent_ms", peer.silent_ms.to_string()),
        ("moved_bytes", peer.moved_bytes.to_string()),
        ("operation", operation),
        ("fetch", peer.fetch.as_ref().map_or("null".to_owned(), fetch)),
        ("outbound_only", peer.outbound_only.to_string()),
        ("figures", figures(&peer.figures)),
    ])
}

/// JSON has no infinity, and nothing that is no number.
fn figures(figures: &[Figure]) -> String {
    let number = |it: &Figure| Some(it.value()).filter(|value| value.is_finite());
    let value = |it: &Figure| number(it).map_or("null".to_owned(), |value| format!("{value:?}"));
    let all: Vec<_> = figures.iter().map(|it| (it.name.as_str(), value(it))).collect();
    object(&all)
}

fn fetch(fetch: &FetchProgress) -> String {
    object(&[
        ("done_bytes", fetch.done_bytes.to_string()),
        ("total_bytes", fetch.total_bytes.to_string()),
        ("bytes_per_s", fetch.rate.to_string()),
        ("sources", fetch.sources.to_string()),
    ])
}

fn wait(wait: &StatusWait) -> String {
    object(&[("since_ms", wait.since_ms.to_string()), ("text", text(wait.text.as_str()))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{
        CallKind, CollectiveKind, CopyId, GroupEpoch, GroupId, Host, JournalStage, Name, OpId, PeerId,
        PeerStage, RequestId, Revision, RunId, Term, Text, WireMode, WorldEpoch, WorldSizes,
    };

    #[test]
    fn every_field_has_its_place() {
        let status = Status {
            request: RequestId(1),
            run: RunId(0xff),
            uptime_ms: 5,
            run_keys: 2,
            wire: Some(WireMode::Off),
            trusted_seeders: vec![Name::new("a"), Name::new("b")],
            sizes: WorldSizes {
                world_epoch: WorldEpoch(3),
                global: 2,
                group: 0,
                groups: 1,
                largest_group: 2,
                min_world: 1,
            },
            groups: vec![StatusGroup {
                group: GroupId(4),
                epoch: GroupEpoch(6),
                connected: false,
                ring: vec![PeerId(1), PeerId(2)],
                revision: Some(Revision(11)),
                slowest: Some(EdgeRate { from: PeerId(1), to: PeerId(2), kbit_s: 12 }),
                schedule: pccl_protocol::Algorithm::Pairwise,
            }],
            peers: vec![StatusPeer {
                peer: PeerId(1),
                host: Host::new("host"),
                name: Name::new("node\"7"),
                p2p_port: 13,
                state_port: 14,
                group: GroupId(4),
                stage: PeerStage::Connecting,
                call: CallKind::Sync,
                call_ms: 7,
                silent_ms: 8,
                moved_bytes: u64::MAX,
                operation: Some(CollectiveId {
                    kind: CollectiveKind::Broadcast,
                    op: OpId { epoch: GroupEpoch(6), tag: 9.into(), attempt: 1 },
                }),
                fetch: Some(FetchProgress { done_bytes: 15, total_bytes: 16, rate: 17, sources: 18 }),
                outbound_only: true,
                figures: [("loss", 0.5), ("step", 1e300), ("bad", f64::NAN)]
                    .map(|(name, value)| Figure::new(pccl_protocol::FigureName::new(name), value))
                    .to_vec(),
            }],
            waits: vec![StatusWait { since_ms: 10, text: Text::new("for \"it\"") }],
            relay: Some(StatusRelay {
                port: 19,
                mbit_per_s: 20,
                bytes: 21,
                pairs: vec![RelayedPair { from: PeerId(1), to: PeerId(2) }],
            }),
            lead: StatusLead {
                term: Term(22),
                acts: true,
                standbys: vec![Standby { copy: CopyId(1), hosts: Host::new("h").into(), port: 23 }],
                text: Some(Text::new("waits")),
                journal: Some(StatusJournal {
                    stage: JournalStage::GivenUp,
                    since_ms: 24,
                    text: Some(Text::new("full")),
                }),
            },
        };
        let id = |last: u32| format!("{last:032x}");
        assert_eq!(
            status_to_json(&status),
            format!(
                concat!(
                    r#"{{"run":"{}","uptime_ms":5,"run_keys":2,"wire":"off","#,
                    r#""trusted_seeders":["a","b"],"world_epoch":3,"world_size":2,"#,
                    r#""min_world_size":1,"largest_group":2,"#,
                    r#""groups":[{{"group":4,"epoch":6,"connected":false,"ring":["{}","{}"],"#,
                    r#""revision":11,"slowest_edge":{{"from":"{}","to":"{}","kbit_s":12}},"schedule":"pairwise"}}],"#,
                    r#""peers":[{{"peer":"{}","host":"host","name":"node_7","p2p_port":13,"state_port":14,"#,
                    r#""group":4,"phase":"connecting","call":"sync_shared_state","#,
                    r#""call_ms":7,"silent_ms":8,"moved_bytes":18446744073709551615,"#,
                    r#""operation":{{"collective":"broadcast","tag":9,"from":null,"to":null,"#,
                    r#""epoch":6,"attempt":1}},"#,
                    r#""fetch":{{"done_bytes":15,"total_bytes":16,"bytes_per_s":17,"sources":18}},"#,
                    r#""outbound_only":true,"figures":{{"loss":0.5,"step":1e300,"bad":null}}}}],"#,
                    r#""waits":[{{"since_ms":10,"text":"for \"it\""}}],"#,
                    r#""relay":{{"port":19,"mbit_per_s":20,"bytes":21,"pairs":[{{"from":"{}","to":"{}"}}]}},"#,
                    r#""lead":{{"term":22,"acts":true,"standbys":["h:23"],"text":"waits"}},"#,
                    r#""journal":{{"state":"given-up","since_ms":24,"text":"full"}}}}"#
                ),
                id(0xff),
                id(1),
                id(2),
                id(1),
                id(2),
                id(1),
                id(1),
                id(2)
            )
        );
        let empty = Status { groups: vec![], peers: vec![], waits: vec![], relay: None, ..status };
        assert!(status_to_json(&empty).contains(r#""groups":[],"peers":[],"waits":[],"relay":null,"#));
    }
}
