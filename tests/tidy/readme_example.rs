use pccl::{Communicator, Error, ReduceOp, SharedState, SyncStrategy};

const STEPS: u64 = 20;

/// What makes up the state of the training: the same on every peer, and handed to newcomers.
pub struct Training {
    pub weights: Vec<f32>,
    pub step: [u64; 1],
    pub revision: u64,
}

fn main() -> Result<(), Error> {
    let comm = Communicator::builder("127.0.0.1:48148").build()?;
    train(&comm, &mut Training { weights: vec![0.0; 1000], step: [0], revision: 0 })
}

pub fn train(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
    // Connects, waits until there are two peers, and makes steps. What fails is made good, and the step made again.
    comm.run(training, 2, |training| training.step[0] < STEPS, outer_step)
}

fn outer_step(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
    let mut state = SharedState::new(training.revision);
    state.tensor("weights", &mut training.weights)?.tensor("step", &mut training.step)?;
    comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    training.revision = state.revision() + 1;

    let mut change = train_locally(&training.weights);
    comm.all_reduce(&mut change, ReduceOp::Avg)?;
    training.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
    training.step[0] += 1;

    // At the end of the step: a newcomer begins with the sync, and so do the others after this.
    if comm.are_peers_pending()? {
        comm.update_topology()?;
    }
    Ok(())
}

/// Stands in for your training: returns how far the weights moved.
fn train_locally(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect()
}
