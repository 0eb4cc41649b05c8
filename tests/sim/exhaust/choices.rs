//! All sequences of choices, one after the other.

/// Enumerates all sequences of choices, whatever their lengths: each run follows a prefix and takes first choices after
/// it; then the last choice that has an alternative is changed.
#[derive(Debug, Default)]
pub(super) struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    pub(super) fn pick(&mut self, count: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, count));
        }
        let (choice, known) = self.taken[self.at];
        assert_eq!(known, count, "a run is not a function of its choices");
        self.at += 1;
        choice
    }

    pub(super) fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, count)) = self.taken.pop() {
            if choice + 1 < count {
                self.taken.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}
