//! Park and wake one thread: a token with three states over a futex.
