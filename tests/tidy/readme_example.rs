use pccl::{Communicator, Error, SharedState, SyncStrategy};

const STEPS: u64 = 20;
/// A weight that counts for nothing beside any other.
const NEXT_TO_NOTHING: f64 = f64::MIN_POSITIVE;

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
    comm.run_with_state(
        training,
        2,
        |it| shared(&mut it.weights, &mut it.step, it.revision),
        |it| it.step[0] < STEPS,
        outer_step,
    )
}

fn shared<'a>(weights: &'a mut [f32], step: &'a mut [u64], revision: u64) -> Result<SharedState<'a>, Error> {
    let mut state = SharedState::new(revision);
    state.tensor("weights", weights)?.tensor("step", step)?;
    Ok(state)
}

fn outer_step(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
    let Training { weights, step, revision } = training;
    let mut state = shared(weights, step, *revision)?;
    let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    *revision = synced.revision;

    // Newcomers fetch the state from here while this peer computes. For who comes with it nobody waits.
    let weights = || state.view("weights").unwrap_or_default();
    let (mut change, weight) = match synced.came_ahead {
        true => (vec![0.0; weights().len()], NEXT_TO_NOTHING),
        false => (comm.lend_state(&state, || train_locally(weights()))?, 1.0),
    };
    // Before the state changes: nothing is moved to newcomers that hold it already, and what was computed stays.
    while comm.are_peers_pending()? {
        comm.update_topology()?;
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    }
    comm.weighted_average(&mut change, weight, ())?;
    training.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
    training.step[0] += 1;
    training.revision += 1;
    Ok(())
}

/// Stands in for your training: returns how far the weights moved.
fn train_locally(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect()
}
