//! `pccl-master plan`: the best ring for a matrix of measured rates.

use clap::{Args, ValueEnum};
use pccl_planner::{
    EXACT_PEERS_BACKGROUND, Objective, Options, Uplink,
    offline::{self, BadInput, Input, Kind, Report, Surroundings},
};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Larger files are no matrices of at most 1,024 peers.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Table of Mbit/s: comma-separated, names in the first line, then a row for each sender; a blank is no link. Or a
    /// TSPLIB file with a full matrix of costs.
    matrix: PathBuf,

    /// The numbers are costs: less is better.
    #[arg(long, conflicts_with = "latency")]
    costs: bool,

    /// The measure of a good ring. Default: balanced, or sum for costs.
    #[arg(long, value_enum)]
    objective: Option<Wanted>,

    /// Table of latencies in ms, one way, of the same peers. Without it, rings that are equally fast are compared by
    /// the sum of 1 / rate.
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,

    /// Peers that share a network interface, to be kept next to each other; may be given several times.
    #[arg(long, value_name = "NAME,NAME,...")]
    together: Vec<String>,

    /// Peers that are one site; may be given several times. Sites of all others are looked for.
    #[arg(long, value_name = "NAME,NAME,...")]
    site: Vec<String>,

    /// Peers that share the way to all others, and what that carries in each direction, in Mbit/s; may be given several
    /// times.
    #[arg(long, value_name = "NAME,NAME,...=MBIT_S")]
    uplink: Vec<String>,

    /// Time for the search; what is proven earlier is printed earlier.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    budget_ms: u64,

    /// Decides every choice that the matrix leaves open.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Search on one thread only, not two.
    #[arg(long)]
    one_thread: bool,

    /// Print one line of JSON.
    #[arg(long)]
    json: bool,

    /// Draw the ring over the matrix.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Objectives by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Wanted {
    /// Lowest latency among rings whose slowest edge has at least 90 % of the best possible rate.
    Balanced,
    /// Fastest slowest edge; then lowest sum.
    Bottleneck,
    /// Lowest sum.
    Sum,
}

/// Reads the matrix, plans, prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let input = read(arguments)?;
    let surroundings = Surroundings {
        sites: sites(&input.names, &arguments.site)?,
        uplinks: uplinks(&input.names, &arguments.uplink)?,
    };
    let default = if input.matrix.is_costs() { Objective::Sum } else { Objective::Balanced };
    let objective = arguments.objective.map_or(default, |wanted| match wanted {
        Wanted::Balanced => Objective::Balanced,
        Wanted::Bottleneck => Objective::Bottleneck,
        Wanted::Sum => Objective::Sum,
    });
    let exact_peers = EXACT_PEERS_BACKGROUND;
    let options = Options { objective, seed: arguments.seed, exact_peers, ..Options::default() };
    let budget = Duration::from_millis(arguments.budget_ms);
    let began = Instant::now();
    let planned = offline::plan_in_time(&input.matrix, &options, budget, !arguments.one_thread);
    let took = began.elapsed();
    let plan = match planned {
        Ok(plan) => plan,
        Err(none) => {
            if arguments.json {
                print(&(offline::no_plan_to_json(&none, &input.names) + "\n"))?;
            }
            return Err(offline::no_plan_to_text(&none, &input.names));
        }
    };
    if let Some(path) = &arguments.svg {
        let written = fs::write(path, offline::to_svg(&input, &plan));
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let surroundings = &surroundings;
    let report = Report { input: &input, objective, plan: &plan, surroundings, took };
    print(&if arguments.json { report.to_json() + "\n" } else { report.to_string() })
}

fn read(arguments: &Arguments) -> Result<Input, String> {
    let text = read_file(&arguments.matrix)?;
    let latency = arguments.latency.as_deref().map(read_file).transpose()?;
    let kind = if arguments.costs { Kind::Costs } else { Kind::Rates };
    let mut input = offline::read(&text, kind, latency.as_deref()).map_err(|(error, of_latency)| {
        let path = arguments.latency.as_ref().filter(|_| of_latency).unwrap_or(&arguments.matrix);
        in_file(path, &error)
    })?;
    if !arguments.together.is_empty() {
        let places = places(&input.names, &arguments.together)?;
        input.matrix = input.matrix.with_places(&places);
    }
    Ok(input)
}

fn in_file(path: &Path, error: &BadInput) -> String {
    format!("{}, {error}", path.display())
}

fn read_file(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    let cannot = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let metadata = fs::metadata(path).map_err(|error| cannot(&error))?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(cannot(&"it is too large for a matrix"));
    }
    let bytes = fs::read(path).map_err(|error| cannot(&error))?;
    String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        cannot(&format!("line {line} is not UTF-8"))
    })
}

/// The peers in a list of names.
fn listed(names: &[String], list: &str, option: &str) -> Result<Vec<usize>, String> {
    let peer = |name: &str| {
        let peer = names.iter().position(|other| other == name);
        peer.ok_or_else(|| format!("{option}: there is no {name:?}"))
    };
    list.split(',').map(str::trim).map(peer).collect()
}

/// The site of each peer that is in one of these lists.
fn sites(names: &[String], lists: &[String]) -> Result<Vec<Option<u16>>, String> {
    let mut sites = vec![None; names.len()];
    for (number, list) in (0..).zip(lists) {
        for peer in listed(names, list, "--site")? {
            if sites[peer].is_some_and(|other| other != number) {
                return Err(format!("--site: {:?} is in two sites", names[peer]));
            }
            sites[peer] = Some(number);
        }
    }
    Ok(sites)
}

fn uplinks(names: &[String], given: &[String]) -> Result<Vec<Uplink>, String> {
    let uplink = |text: &String| {
        let bad = || format!("--uplink: {text:?} is not NAME,NAME,...=MBIT_S with a rate above 0");
        let (list, rate) = text.rsplit_once('=').ok_or_else(bad)?;
        let rate: f64 = rate.trim().parse().map_err(|_| bad())?;
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(bad());
        }
        let mut behind = vec![false; names.len()];
        listed(names, list, "--uplink")?.into_iter().for_each(|peer| behind[peer] = true);
        Ok(Uplink { behind, sends: rate, receives: rate })
    };
    given.iter().map(uplink).collect()
}

/// The place of each peer: those named together share one.
fn places(names: &[String], together: &[String]) -> Result<Vec<usize>, String> {
    let mut places: Vec<usize> = (0..names.len()).collect();
    for list in together {
        let mut first = None;
        for peer in listed(names, list, "--together")? {
            let (old, new) = (places[peer], *first.get_or_insert(places[peer]));
            places.iter_mut().filter(|place| **place == old).for_each(|place| *place = new);
        }
    }
    Ok(places)
}

/// A user who pipes it into `head` has seen enough.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {error}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_share_a_peer_are_one() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
        let together =
            |lists: &[&str]| places(&names, &lists.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(together(&["a,b", "c, b"]).unwrap(), [2, 2, 2, 3]);
        assert!(together(&["a,x"]).unwrap_err().contains("\"x\""));
    }

    #[test]
    fn sites_and_uplinks_are_lists_of_names() {
        let names: Vec<String> = ["a", "b", "c=1"].map(String::from).into();
        let of = |lists: &[&str]| sites(&names, &lists.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["a,c=1"]).unwrap(), [Some(0), None, Some(0)]);
        assert_eq!(of(&["b", "a"]).unwrap(), [Some(1), Some(0), None]);
        assert!(of(&["a,b", "b"]).unwrap_err().contains("\"b\" is in two sites"));
        assert!(of(&["x"]).unwrap_err().contains("--site: there is no \"x\""));
        let found = uplinks(&names, &["b,c=1=2.5".to_owned()]).unwrap();
        assert_eq!((&found[0].behind[..], found[0].sends), (&[false, true, true][..], 2.5));
        for bad in ["a", "a=", "a=0", "a=-1", "a=inf", "x=1"] {
            assert!(uplinks(&names, &[bad.to_owned()]).unwrap_err().starts_with("--uplink: "), "{bad}");
        }
    }
}
