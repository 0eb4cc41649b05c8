//! Syncs of shared state between processes of this machine, next to plain TCP that moves the same bytes:
//! `cargo bench -p pccl --bench state -- --help`.
//!
//! The program starts itself once per peer. Plain TCP is measured in turns with everything else, so that a ratio holds
//! up on a machine that others use too. How to read the tables is in `docs/performance.md`.

mod child;
mod fleet;
mod join;
mod local;
mod plain;
mod trainer;
mod wan;

use clap::Parser;
use std::{error::Error, path::PathBuf};

/// Measures syncs of shared state between processes of this machine.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Size of the state, in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// How often everything is measured; the tables have the medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Memory that the receiver may take beside its tensors, in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: usize,
    /// Most sources.
    #[arg(long, default_value_t = 3)]
    sources: usize,
    /// Path of the program `wanlab`: measures between far hosts instead. Needs root.
    #[arg(long)]
    wan: Option<PathBuf>,
    /// Only the cases of `--wan` whose names contain this.
    #[arg(long, default_value = "")]
    case: String,
    /// Set by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    /// This process is a master that listens on this address.
    #[arg(long, hide = true)]
    serve: Option<String>,
    /// This process is a peer of the run with this master.
    #[arg(long, hide = true)]
    child: Option<String>,
    /// This process is a peer that trains in the run with this master.
    #[arg(long, hide = true)]
    trainer: Option<String>,
    /// It comes to others that train already.
    #[arg(long, hide = true)]
    joins: bool,
    /// This number of peers belong to the run.
    #[arg(long, hide = true, default_value_t = 2)]
    peers: usize,
    /// This process is the sending end of a plain connection to this address.
    #[arg(long, hide = true)]
    plain_to: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let from = env_logger::Env::default().default_filter_or("error");
    env_logger::Builder::from_env(from).format_timestamp_millis().init();
    let args = Args::parse();
    match (&args.serve, &args.child, &args.plain_to, &args.wan) {
        _ if args.trainer.is_some() => trainer::run(args.trainer.as_deref().unwrap_or_default(), &args),
        (Some(listen), ..) => child::serve(listen),
        (_, Some(master), ..) => child::peer(master, &args),
        (_, _, Some(target), _) => plain::send(target, args.mib),
        (_, _, _, Some(program)) => wan::run(program, &args),
        _ => local::run(&args),
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
