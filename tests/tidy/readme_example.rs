use pccl::{Communicator, Error, ReduceOp, SharedState, SyncStrategy};

/// `master` is its address, such as `127.0.0.1:48148`.
pub fn train(master: &str, weights: Vec<f32>, steps: u64) -> Result<Vec<f32>, Error> {
    let comm = Communicator::builder(master).build()?;
    let mut training = (weights, 0);
    comm.run(&mut training, 2, |it| it.1 < steps, step)?;
    Ok(training.0)
}

fn step(comm: &Communicator, (weights, revision): &mut (Vec<f32>, u64)) -> Result<(), Error> {
    let mut state = SharedState::new(*revision);
    state.tensor("weights", weights)?;
    *revision = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?.revision;
    let mut change = train_locally(weights);
    comm.all_reduce(&mut change, ReduceOp::Avg)?;
    weights.iter_mut().zip(change).for_each(|(weight, change)| *weight += change);
    *revision += 1;
    while comm.are_peers_pending()? {
        comm.update_topology()?;
    }
    Ok(())
}

/// Stands in for your training: returns how far the weights moved.
fn train_locally(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect()
}
