//! Files of the flight recorder through `explain`: no input keeps it from an answer or a sentence that says why not.
#![no_main]

use pccl_flight::{Options, explain};

libfuzzer_sys::fuzz_target!(|text: &str| {
    // Two files where the input has a page break: explain aligns their clocks.
    let files = text.split('\u{c}').enumerate().map(|(number, text)| (number.to_string(), text.to_owned()));
    let _ = explain(files, &Options { all: true, ..Options::default() });
});
