//! The names of all keys.

use super::Member;

/// Keys of one run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Keys of the run with this name.
    pub fn new(run: &str) -> Self {
        Self { prefix: format!("it/{run}/") }
    }

    /// The register.
    pub fn state(&self) -> String {
        format!("{}state", self.prefix)
    }

    /// Number of incarnations of a member.
    pub fn incarnation(&self, id: &str) -> String {
        format!("{}inc/{id}", self.prefix)
    }

    /// Sign of life of a member.
    pub fn heartbeat(&self, member: &Member) -> String {
        format!("{}hb/{}/{}", self.prefix, member.id, member.incarnation)
    }

    /// Arrival of a member for an iteration.
    pub fn arrival(&self, iteration: u64, member: &Member) -> String {
        format!("{}arr/{iteration}/{}/{}", self.prefix, member.id, member.incarnation)
    }

    /// Farewell of a member.
    pub fn left(&self, member: &Member) -> String {
        format!("{}left/{}/{}", self.prefix, member.id, member.incarnation)
    }

    /// Number of slots of joiners.
    pub fn joins(&self) -> String {
        format!("{}joins", self.prefix)
    }

    /// A slot of a joiner.
    pub fn join(&self, slot: u64) -> String {
        format!("{}join/{slot}", self.prefix)
    }

    /// Hint how many have arrived for an iteration.
    pub fn count(&self, iteration: u64) -> String {
        format!("{}cnt/{iteration}", self.prefix)
    }

    /// Hint that an iteration is decided.
    pub fn wake(&self, iteration: u64) -> String {
        format!("{}wake/{iteration}", self.prefix)
    }
}

/// Mirror for humans and old tools, never read here: the iteration.
pub const MIRROR_COUNTER: &str = "global_iteration_counter";

/// Mirror for humans and old tools, never read here: the last iteration of a member.
pub fn mirror_last_iteration(id: &str) -> String {
    format!("rank_{id}_last_iteration")
}

/// Mirror for humans and old tools, never read here: seconds since 1970 by the clock of the member.
pub fn mirror_heartbeat(id: &str) -> String {
    format!("heartbeat_{id}")
}

/// A server of this library that shares a process with a master sets this key.
pub const BESIDE_MASTER: &str = "pccl/store/beside_master";
