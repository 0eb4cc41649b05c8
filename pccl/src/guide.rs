//! The guides: what calls yield, what to do about errors, and how to run this on machines. They are documents of the
//! repository; files that they name lie there. The training loop that they speak of is on the [front page](crate).

/// What each call yields, rule by rule, with the tests that hold it.
pub mod semantics {
    #![doc = include_str!("guide/semantics.md")]

    /// What a collective computes.
    pub mod results {
        #![doc = include_str!("guide/semantics/results.md")]
    }

    /// What a sync yields.
    pub mod shared_state {
        #![doc = include_str!("guide/semantics/shared_state.md")]
    }
}

/// Each error, and what a training loop does about it.
pub mod errors {
    #![doc = include_str!("guide/errors.md")]
}

/// How a training loop goes on after an error.
pub mod recovery {
    #![doc = include_str!("guide/recovery.md")]
}

/// How tensors travel in fewer bits, and what that costs in accuracy.
pub mod quantisation {
    #![doc = include_str!("guide/quantisation.md")]
}

/// What to build and copy, ports, systemd, containers, Slurm.
pub mod deploying {
    #![doc = include_str!("guide/deploying.md")]
}

/// What an operator sees of a run, time-outs, and runs that seem stuck.
pub mod operating {
    #![doc = include_str!("guide/operating.md")]

    /// What the status of a run says.
    pub mod status {
        #![doc = include_str!("guide/operating/status.md")]
    }

    /// What to do about a run that seems stuck.
    pub mod troubleshooting {
        #![doc = include_str!("guide/operating/troubleshooting.md")]
    }

    /// Why a machine does not get in.
    pub mod doctor {
        #![doc = include_str!("guide/operating/doctor.md")]
    }

    /// Ports, addresses and paths.
    pub mod network {
        #![doc = include_str!("guide/operating/network.md")]
    }

    /// How a peer leaves, and how it is removed.
    pub mod leaving {
        #![doc = include_str!("guide/operating/leaving.md")]
    }

    /// How a run key is changed while the run goes on.
    pub mod keys {
        #![doc = include_str!("guide/operating/keys.md")]
    }

    /// Which shared state a run goes on from, and what a sync takes.
    pub mod state {
        #![doc = include_str!("guide/operating/state.md")]
    }

    /// Time-outs, and limits of calls.
    pub mod timeouts {
        #![doc = include_str!("guide/operating/timeouts.md")]
    }

    /// What a cut connection or a restart of the master costs.
    pub mod restarts {
        #![doc = include_str!("guide/operating/restarts.md")]
    }

    /// Masters on several machines.
    pub mod failover {
        #![doc = include_str!("guide/operating/failover.md")]
    }
}
