//! The cost of a run key: the same operations with one and without, in turns.

use crate::{
    Args,
    fleet::Setup,
    turns,
    wan::{CASES, HOSTS},
};
use pccl_testkit::lab::Lab;
use std::error::Error;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "wire mode {}; time and processor time: of the same operation without a key = 1",
        args.wire.unwrap_or_default()
    );
    let Some(program) = &args.wan else {
        for &peers in &args.peers {
            compare(
                args,
                Setup { tcp: true, ..Setup::here(args, peers) },
                &format!("{peers} peers"),
                turns::sizes(args),
            )?;
        }
        return Ok(());
    };
    for case in CASES.iter().filter(|case| case.name.contains(&args.case)) {
        let lab = Lab::up(program, HOSTS, case.route, case.slow_mbit)?;
        let sizes = case.sizes.iter().map(|mib| (mib << 20, 1)).collect();
        let plain = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
        compare(args, plain, &format!("{HOSTS} hosts, {}", case.name), sizes)?;
    }
    Ok(())
}

fn compare(args: &Args, plain: Setup<'_>, name: &str, sizes: turns::Sizes) -> Result<(), Box<dyn Error>> {
    let keyed = Setup { keyed: Some(args.wire.unwrap_or_default()), ..plain };
    turns::compare((plain, keyed), args.rounds, (name, "with key"), sizes)
}
