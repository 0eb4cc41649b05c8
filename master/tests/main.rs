//! The master and its program as clients and operators meet them: one program, since linking costs more than the tests.
//! Floods use up the descriptors of their process, so they are another one.

mod clients;
mod common;
mod doctor;
mod examine;
mod explain;
mod hostile;
mod journals;
mod operator;
mod plan;
mod private;
#[path = "common/program.rs"]
mod process;
mod program;
mod returning;
mod rotation;
mod run_names;
mod standby;
