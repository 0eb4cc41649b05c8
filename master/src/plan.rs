//! `pccl-master plan`: the best ring for a matrix of measured rates.

use clap::{Args, ValueEnum};
use pccl_master::{
    offline::{self, BadInput, Input, Kind, Report},
    topology::{EXACT_PEERS_BACKGROUND, Objective, Options},
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

    /// What makes a ring good. Default: balanced, or sum for costs.
    #[arg(long, value_enum)]
    objective: Option<Wanted>,

    /// Table of latencies in ms, one way, of the same peers. Without it, rings that are equally fast are compared by
    /// the sum of 1 / rate.
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,

    /// Peers that share a network interface, to be kept next to each other; may be given several times.
    #[arg(long, value_name = "NAME,NAME,...")]
    together: Vec<String>,

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
    let report = Report { input: &input, objective, plan: &plan, took };
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

/// The place of each peer: those named together share one.
fn places(names: &[String], together: &[String]) -> Result<Vec<usize>, String> {
    let mut places: Vec<usize> = (0..names.len()).collect();
    for list in together {
        let mut first = None;
        for name in list.split(',').map(str::trim) {
            let peer = names.iter().position(|other| other == name);
            let peer = peer.ok_or_else(|| format!("--together: there is no {name:?}"))?;
            let (old, new) = (places[peer], *first.get_or_insert(places[peer]));
            places.iter_mut().filter(|place| **place == old).for_each(|place| *place = new);
        }
    }
    Ok(places)
}

/// Who pipes it into `head` has seen enough.
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
}
