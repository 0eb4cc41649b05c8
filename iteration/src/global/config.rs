//! How a member takes part.

use super::IterationError;
use crate::protocol::{MAX_MEMBERS, Policy, check_id};
use std::time::Duration;

/// Shortest time of any setting.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a member takes part. All members of a run must have the same `run`, `policy` and `world_size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IterationConfig {
    /// Name of the run: letters, digits, hyphens, underscores and points. Runs with different names do not see each
    /// other.
    pub run: String,
    /// A new run begins when this many members have joined.
    pub world_size: usize,
    /// Number of the first iteration of a new run.
    pub first_iteration: u64,
    /// The rule for the members that must be there for a decision.
    pub policy: Policy,
    /// A member gives a sign of life this often.
    pub heartbeat_interval: Duration,
    /// A member without a sign of life for this long, by the clock of the one who waits for it, is not waited for.
    pub inactive_after: Duration,
    /// Without any progress for this long, members that live but have not arrived are not waited for either.
    pub no_progress: Duration,
    /// A member that waits looks at the store this often, should the wake-up be lost.
    pub poll_interval: Duration,
    /// The store may be unreachable for this long within one call.
    pub store_timeout: Duration,
    /// How long [`join`](super::GlobalIteration::join) and [`catch_up`](super::GlobalIteration::catch_up) wait to be
    /// taken in. Without it they wait as long as any member lives.
    pub join_timeout: Option<Duration>,
    /// Whether to write `global_iteration_counter`, `rank_ID_last_iteration` and `heartbeat_ID` for humans and old
    /// tools.
    pub mirror: bool,
}

impl Default for IterationConfig {
    fn default() -> Self {
        Self {
            run: "default".into(),
            world_size: 1,
            first_iteration: 0,
            policy: Policy::AnySubset,
            heartbeat_interval: Duration::from_secs(5),
            inactive_after: Duration::from_secs(30),
            no_progress: Duration::from_secs(60),
            poll_interval: Duration::from_millis(200),
            store_timeout: Duration::from_secs(60),
            join_timeout: None,
            mirror: true,
        }
    }
}

impl IterationConfig {
    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// [`IterationError::Setting`], in one sentence.
    pub fn check(&self) -> Result<(), IterationError> {
        check_id("name of a run", &self.run).map_err(IterationError::Setting)?;
        let setting = |text: String| Err(IterationError::Setting(text));
        if !(1..=MAX_MEMBERS).contains(&self.world_size) {
            return setting(format!(
                "a world size of {} is not between 1 and {MAX_MEMBERS}",
                self.world_size
            ));
        }
        let times = [self.heartbeat_interval, self.inactive_after, self.no_progress, self.poll_interval];
        if let Some(time) = times.into_iter().chain([self.store_timeout]).find(|time| *time < SHORTEST) {
            return setting(format!("a time of {time:?} is too short, use at least {SHORTEST:?}"));
        }
        if self.heartbeat_interval * 2 > self.inactive_after {
            return setting(format!(
                "a heartbeat every {:?} does not fit a limit of {:?}: at most half of it",
                self.heartbeat_interval, self.inactive_after
            ));
        }
        Ok(())
    }
}
