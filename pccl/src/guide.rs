//! The guides: what calls yield, what to do about errors, and how to run this on machines. They are documents of the
//! repository; files that they name lie there. The training loop that they speak of is on the [front page](crate).

/// What each call yields, rule by rule, with the tests that hold it.
pub mod semantics {
    #![doc = include_str!("guide/semantics.md")]
}

/// Each error, and what a training loop does about it.
pub mod errors {
    #![doc = include_str!("guide/errors.md")]
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
}
