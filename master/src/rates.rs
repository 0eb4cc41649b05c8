//! The rates that were measured between the members of a group, as a table and as JSON.

use pccl_protocol::Rates;
use pccl_protocol::json::{list, object, text};

/// A table of rates in Mbit/s as `pccl-master plan` reads it: the names of all members in the first line, then a row
/// for each sending end. A blank is an edge without a rate. Names that two members share have the identity of the
/// member behind them.
///
/// # Errors
/// One sentence: why there is nothing to show.
pub fn rates_to_csv(rates: &Rates) -> Result<String, String> {
    let Some(group) = rates.group else { return Err("no such group has a ring".into()) };
    if rates.edges.is_empty() {
        return Err(format!(
            "nothing has been measured in group {group}: its peers have to call optimize_topology, and be at least \
             three"
        ));
    }
    let names = names(rates);
    let n = names.len();
    let mut cells = vec![String::new(); n * n];
    for edge in &rates.edges {
        if let Some(cell) = cells.get_mut(usize::from(edge.from) * n + usize::from(edge.to)) {
            *cell = format!("{:.3}", edge.kbit_s as f64 / 1000.0);
        }
    }
    let mut out = format!("from,{}\n", names.join(","));
    for (name, row) in names.iter().zip(cells.chunks(n)) {
        out.push_str(&format!("{name},{}\n", row.join(",")));
    }
    Ok(out)
}

/// The same as one line of JSON: the members in ring order, and the edges that have a rate, with latencies.
pub fn rates_to_json(rates: &Rates) -> String {
    let id = |place: u16| {
        rates.peers.get(usize::from(place)).map_or_else(String::new, |peer| format!("{:#}", peer.peer))
    };
    let peers = rates.peers.iter().map(|peer| {
        object(&[("peer", text(&format!("{:#}", peer.peer))), ("name", text(peer.name.as_str()))])
    });
    let edges = rates.edges.iter().map(|edge| {
        object(&[
            ("from", text(&id(edge.from))),
            ("to", text(&id(edge.to))),
            ("kbit_s", edge.kbit_s.to_string()),
            ("latency_us", edge.latency_us.to_string()),
        ])
    });
    object(&[
        ("group", rates.group.map_or_else(|| "null".to_owned(), |group| group.to_string())),
        ("peers", list(peers)),
        ("edges", list(edges)),
        ("left_out", rates.left_out.to_string()),
    ])
}

/// The name of each member in a table: different from all others. Names have no commas or quotes.
fn names(rates: &Rates) -> Vec<String> {
    let is_unique = |name: &str| rates.peers.iter().filter(|peer| peer.name.as_str() == name).count() == 1;
    let called = |peer: &pccl_protocol::RatedPeer| match peer.name.as_str() {
        "" => format!("{:#}", peer.peer),
        name if is_unique(name) => name.to_owned(),
        name => format!("{name}~{:#}", peer.peer),
    };
    rates.peers.iter().map(called).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_planner::offline::{Kind, read};
    use pccl_protocol::{GroupId, MeasuredEdge, Name, PeerId, RatedPeer, RequestId};

    fn rates(names: [&str; 3]) -> Rates {
        let peers = names.iter().enumerate();
        let peers =
            peers.map(|(at, name)| RatedPeer { peer: PeerId(at as u128 + 1), name: Name::new(*name) });
        let edge = |from, to, kbit_s| MeasuredEdge { from, to, kbit_s, latency_us: 20 };
        Rates {
            request: RequestId(1),
            group: Some(GroupId(0)),
            peers: peers.collect(),
            edges: vec![edge(0, 1, 87_654), edge(2, 0, 1_000_000)],
            left_out: 0,
        }
    }

    #[test]
    fn the_table_is_one_that_plan_reads() {
        let csv = rates_to_csv(&rates(["a:1", "b:2", "c"])).unwrap();
        assert_eq!(csv, "from,a:1,b:2,c\na:1,,87.654,\nb:2,,,\nc,1000.000,,\n");
        let input = read(&csv, Kind::Rates, None).unwrap();
        assert_eq!(input.names, ["a:1", "b:2", "c"]);
        // Names that are not unique are made so.
        let csv = rates_to_csv(&rates(["x", "x", ""])).unwrap();
        assert_eq!(read(&csv, Kind::Rates, None).unwrap().names[0], format!("x~{:032x}", 1));
    }

    #[test]
    fn nothing_to_show_is_a_sentence() {
        let measured = rates(["a", "b", "c"]);
        let nobody = Rates { group: None, ..measured.clone() };
        assert!(rates_to_csv(&nobody).unwrap_err().contains("no such group"));
        let nothing = Rates { edges: Vec::new(), ..measured };
        assert!(rates_to_csv(&nothing).unwrap_err().contains("optimize_topology"));
        assert!(rates_to_json(&nothing).contains(r#""edges":[],"left_out":0"#));
    }
}
