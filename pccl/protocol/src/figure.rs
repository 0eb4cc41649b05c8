//! Numbers that a program reports of its training, for those who look at the run.

use crate::{FigureName, limits};
use std::fmt;
use tinysockets::wire::ListItem;

wire_struct! {
    /// A number of a peer, such as its step or its loss: the newest that it has reported under this name.
    pub struct Figure {
        /// Its name.
        pub name: FigureName,
        /// The bits of an f64, which may be no number.
        pub bits: u64,
    }
}

impl ListItem for Figure {
    const LIST: &'static str = "figures";
    const MAX_ITEMS: usize = limits::MAX_FIGURES;
}

impl Figure {
    /// Of a number.
    pub fn new(name: FigureName, value: f64) -> Self {
        Self { name, bits: value.to_bits() }
    }

    /// The number.
    pub fn value(&self) -> f64 {
        f64::from_bits(self.bits)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.value())
    }
}
