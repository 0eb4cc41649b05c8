//! The guides: what calls yield, what to do about errors, and how to run this on machines. They are documents of the
//! repository; files that they name lie there. The training loop that they speak of is on the [front page](crate).

/// The effect of each call, rule by rule, with the tests that hold it.
pub mod semantics {
    #![doc = include_str!("guide/semantics.md")]

    /// The results of collectives.
    pub mod results {
        #![doc = include_str!("guide/semantics/results.md")]
    }

    /// The results of a sync.
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

/// Installing: files to build and copy, ports, systemd, containers, Slurm.
pub mod deploying {
    #![doc = include_str!("guide/deploying.md")]
}

/// How to operate a run: status, time-outs, runs that seem stuck.
pub mod operating {
    #![doc = include_str!("guide/operating.md")]

    /// The status of a run, and how to read it.
    pub mod status {
        #![doc = include_str!("guide/operating/status.md")]
    }

    /// Help with a run that seems stuck.
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

    /// Cut connections, and restarts of a master.
    pub mod restarts {
        #![doc = include_str!("guide/operating/restarts.md")]
    }

    /// Masters on several machines.
    pub mod failover {
        #![doc = include_str!("guide/operating/failover.md")]
    }
}
