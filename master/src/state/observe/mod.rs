//! Pictures of the run; nothing here changes it. `status` answers a question about it, `wait_reasons` says of
//! everything that waits for whom it waits, `snapshot` is a plain picture for tests, and checks what must always
//! hold.
//!
//! The room reads all others.

pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod wait_reasons;
