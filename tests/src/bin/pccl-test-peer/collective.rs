//! The command that makes a collective of any kind. Each try looks at the world anew: ranks, and how many there are.

use crate::{Reply, failed_with, kind as kind_of, usage, world};
use pccl::{CollectiveOptions, Communicator, Error, ReduceInfo, ReduceOp, ReduceOptions, Remedy, Schedule};
use pccl_tests::{
    collectives::{bytes, input, part},
    pattern,
};

/// The end of a try: the result, and whether the input is still there.
struct Tried {
    result: Result<ReduceInfo, Error>,
    output: Vec<u64>,
    intact: bool,
}

fn attempt(comm: &Communicator, kind: &str, index: usize, (count, tag): (usize, u64)) -> Option<Tried> {
    let own = input(index, count);
    let ranks = comm.world().ring.len().max(1);
    let sum = ReduceOptions::new(ReduceOp::Sum).tag(tag);
    // By ranks between, also where there is a mesh: deaths are planned for frames of the ring.
    let around = CollectiveOptions { tag, schedule: Schedule::Ring, ..CollectiveOptions::default() };
    let mut data = own.clone();
    let in_place = |result: Result<ReduceInfo, Error>, data: Vec<u64>| {
        let intact = result.is_ok() || data == own;
        Tried { result, output: data, intact }
    };
    Some(match kind {
        "broadcast" => in_place(comm.broadcast(&mut data, 0, tag), data),
        "reduce" => in_place(comm.reduce(&mut data, 0, sum), data),
        "barrier" => in_place(comm.barrier(tag), data),
        "all_gather" => {
            let mut output = vec![0; ranks * count];
            let result = comm.all_gather(&data, &mut output, tag);
            Tried { result, output, intact: data == own }
        }
        "reduce_scatter" => {
            let mut output = vec![7; part(count, ranks)];
            let result = comm.reduce_scatter(&data[..ranks * output.len()], &mut output, sum);
            let intact = data == own && (result.is_ok() || output.iter().all(|element| *element == 7));
            Tried { result, output, intact }
        }
        "gather" => {
            let mut output = vec![0; if comm.world().rank == 0 { ranks * count } else { 0 }];
            let result = comm.gather(&data, &mut output, 0, around);
            Tried { result, output, intact: data == own }
        }
        "scatter" => {
            let mut output = vec![0; part(count, ranks)];
            let result = comm.scatter(&data[..ranks * output.len()], &mut output, 0, around);
            Tried { result, output, intact: data == own }
        }
        "all_to_all" => {
            let mut output = vec![0; ranks * part(count, ranks)];
            let result = comm.all_to_all(&data[..output.len()], &mut output, around);
            Tried { result, output, intact: data == own }
        }
        _ => return None,
    })
}

/// `collective KIND COUNT TAG RETRIES`: rank 0 of the present world is the root.
pub(crate) fn run(comm: &Communicator, index: usize, words: &[&str]) -> Reply {
    let &[kind, count, tag, retries] = words else { return Err(usage("KIND COUNT TAG RETRIES")) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| usage(text));
    let (count, tag, retries) = (number(count)? as usize, number(tag)?, number(retries)?);
    let (mut errors, mut intact, mut text) = (Vec::new(), true, String::new());
    loop {
        let tried = attempt(comm, kind, index, (count, tag)).ok_or_else(|| usage(kind))?;
        intact &= tried.intact;
        match tried.result {
            Ok(info) => {
                let digest = pattern::digest(&bytes(&tried.output));
                return Ok(format!(
                    "participants={} own={} digests={digest} restored={intact} errors={} {} -- {text}",
                    info.world_size,
                    info.rank,
                    errors.join("|"),
                    world(&comm.world()),
                ));
            }
            Err(error) => {
                errors.push(kind_of(&error));
                if error.remedy() != Remedy::Retry || errors.len() > retries as usize {
                    return Err(failed_with(
                        &error,
                        &format!("restored={intact} errors={}", errors.join("|")),
                    ));
                }
                if text.is_empty() {
                    text = error.to_string().replace('\n', " ");
                }
            }
        }
    }
}
