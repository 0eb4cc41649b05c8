//! Nothing that compression loses is lost for good, and nothing is counted twice: over many means, what all have
//! contributed is what all have got and what is still kept.

use pccl::{Communicator, Master, MasterConfig};
use pccl_diloco::{Averager, Compression};
use std::{thread, time::Duration};

const ELEMENTS: usize = 1500;
const MEMBERS: usize = 3;
const MEANS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(120);

/// A value that differs by member, mean and element, from -1 to 1, with few that are large.
fn value(member: usize, mean: usize, element: usize) -> f32 {
    let mixed = (member * 7919 + mean * 104_729 + element * 1_299_709) % 2003;
    let value = mixed as f32 / 1001.5 - 1.0;
    value * value * value
}

fn weights(mean: usize) -> Vec<f64> {
    // One of them misses each fourth mean.
    (0..MEMBERS).map(|member| if mean % 4 == 3 && member == 1 { 0.0 } else { (member + 1) as f64 }).collect()
}

/// The means that one member gets.
fn member(address: &str, compression: Compression, keeps_errors: bool) -> Vec<Vec<f32>> {
    let comm = Communicator::builder(address).first_ports(0, 0).build().expect("settings");
    comm.connect().expect("connects");
    comm.wait_for_world(MEMBERS, Some(PATIENCE)).expect("a world");
    let rank = comm.world().rank;
    let mut averager = Averager::new(ELEMENTS, compression);
    (0..MEANS)
        .map(|mean| {
            let weights = weights(mean);
            let values: Vec<_> = (0..ELEMENTS).map(|element| value(rank, mean, element)).collect();
            let values = if weights[rank] > 0.0 { values.as_slice() } else { &[] };
            let averaged = averager.weighted_mean(&comm, 0..ELEMENTS, values, &weights).expect("a mean");
            if !keeps_errors {
                averager = Averager::new(ELEMENTS, compression);
            }
            averaged.mean
        })
        .collect()
}

/// The root of the mean square of what the sums over all means are apart from the exact ones.
fn apart(compression: Compression, keeps_errors: bool) -> f64 {
    let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let all: Vec<_> = thread::scope(|scope| {
        let members: Vec<_> =
            (0..MEMBERS).map(|_| scope.spawn(|| member(&address, compression, keeps_errors))).collect();
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    });
    assert!(all.iter().all(|means| *means == all[0]), "means differ between members");
    let squares = (0..ELEMENTS).map(|element| {
        let got: f64 = all[0].iter().map(|mean| f64::from(mean[element])).sum();
        let exact: f64 = (0..MEANS)
            .map(|mean| {
                let weights = weights(mean);
                let sum: f64 = (0..MEMBERS).map(|it| weights[it] * f64::from(value(it, mean, element))).sum();
                sum / weights.iter().sum::<f64>()
            })
            .sum();
        (got - exact).powi(2)
    });
    (squares.sum::<f64>() / ELEMENTS as f64).sqrt()
}

#[test]
fn the_sum_of_all_means_is_exact_but_for_the_errors_of_about_one() {
    assert!(apart(Compression::None, true) < 1e-5);
    for compression in [Compression::Int8, Compression::Int4, Compression::Int2, Compression::Largest(8)] {
        let (kept, dropped) = (apart(compression, true), apart(compression, false));
        // Errors that are dropped add up like a random walk of forty steps; those that are kept do not add up.
        assert!(kept < dropped / 2.5, "{compression}: {kept} with error feedback, {dropped} without");
    }
}
