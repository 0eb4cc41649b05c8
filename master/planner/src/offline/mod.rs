//! Planning without a run: matrices from files, plans as text, JSON and pictures.

mod bad_input;
mod in_time;
mod input;
mod report;
mod svg;
mod table;
mod tsplib;

pub use bad_input::BadInput;
pub use in_time::plan_in_time;
pub use input::{Input, Kind, read};
pub use report::{Report, Surroundings, no_plan_to_json, no_plan_to_text};
pub use svg::to_svg;
