//! Numbers that the program reports of its training. The next sign of life takes them to the master.

use crate::Error;
use parking_lot::Mutex;
use pccl_protocol::{Figure, FigureName, limits};

/// The newest of each name, in the order in which names came.
#[derive(Debug, Default)]
pub(crate) struct Figures(Mutex<Vec<Figure>>);

impl Figures {
    /// Keeps a number, in place of the last one of this name.
    pub(crate) fn set(&self, name: &str, value: f64) -> Result<(), Error> {
        let kept = FigureName::new(name);
        if name.is_empty() || kept.as_str() != name {
            return Err(Error::InvalidArgument(format!(
                "a figure named {name:?}: 1 to {} bytes of letters, digits and -_.:@/+=~",
                limits::MAX_FIGURE_NAME_BYTES
            )));
        }
        let mut figures = self.0.lock();
        let is_full = figures.len() == limits::MAX_FIGURES;
        match figures.iter_mut().find(|it| it.name == kept) {
            Some(figure) => *figure = Figure::new(kept, value),
            None if is_full => {
                let most = limits::MAX_FIGURES;
                return Err(Error::InvalidArgument(format!("figure {name:?} is one more than {most}")));
            }
            None => figures.push(Figure::new(kept, value)),
        }
        Ok(())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Figure> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number_and_there_are_few_names() {
        let figures = Figures::default();
        for at in 0..limits::MAX_FIGURES {
            figures.set(&format!("f{at}"), 1.0).expect("a figure");
        }
        figures.set("f3", f64::NAN).expect("another number");
        let all = figures.all();
        assert_eq!(all.len(), limits::MAX_FIGURES);
        assert!(all[3].value().is_nan() && all[4].value() == 1.0);
        for bad in ["one_more", "", "two words", "a\u{1b}[2J", &"x".repeat(limits::MAX_FIGURE_NAME_BYTES + 1)]
        {
            assert!(matches!(figures.set(bad, 1.0), Err(Error::InvalidArgument(_))), "{bad:?}");
        }
        assert_eq!(figures.all().len(), limits::MAX_FIGURES);
    }
}
