//! The state that a program in C lends, until it is reclaimed or anything else ends the loan.

use parking_lot::Mutex;
use pccl::DetachedLoan;

/// The loan of a communicator: one at a time. Numbers tell a loan from those before it.
#[derive(Debug, Default)]
pub(crate) struct Loans(Mutex<Slot>);

#[derive(Debug, Default)]
struct Slot {
    last: u64,
    standing: Option<DetachedLoan>,
}

impl Loans {
    /// Keeps a loan that has begun, in the place of one that has ended. Returns its number, which is not 0.
    pub(crate) fn keep(&self, loan: DetachedLoan) -> u64 {
        let mut slot = self.0.lock();
        slot.last += 1;
        let (number, before) = (slot.last, slot.standing.replace(loan));
        drop(slot);
        drop(before);
        number
    }

    /// Ends a loan by its number, or, for 0, the one that stands. Nobody reads its memory any more when this returns.
    pub(crate) fn end(&self, number: u64) {
        let mut slot = self.0.lock();
        let is_meant = number == 0 || number == slot.last;
        let loan = if is_meant { slot.standing.take() } else { None };
        drop(slot);
        drop(loan);
    }
}
