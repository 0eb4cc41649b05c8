//! The flight recorder: what a peer or a master did last, kept in a bounded buffer, written to a file when something
//! fails, and explained afterwards from the files of many.
//!
//! * [`Recorder`] keeps events and writes files; recording takes one short lock and, but for rare texts, no memory.
//! * [`File`] is the content of one file: text, one line per event; the parser takes any bytes.
//! * [`explain()`] merges files into one time line that starts with the first cause. It is pure.
//!
//! Clients and masters record; `pccl-master explain` reads. It knows the packets and sends none.
//!
//! Modules from top to bottom, each of which uses only those below it: `explain`, `report`, `incident`,
//! `align`, `story`, `recorder`, `store`, `buffer`, `format`, `packets`, `event`.
#![forbid(unsafe_code)]

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod align;
mod buffer;
mod event;
mod explain;
mod format;
mod incident;
mod packets;
mod recorder;
mod report;
mod store;
mod story;

pub use event::{Entry, Event, Subject, What};
pub use explain::{Explained, Options, explain};
pub use format::{File, FormatError, Header, Role};
pub use packets::{subject_to_master, subject_to_peer};
pub use recorder::{DEFAULT_CAPACITY, Recorder, Settings};
pub use store::{FILE_SUFFIX, directory_from_environment, host_name};
