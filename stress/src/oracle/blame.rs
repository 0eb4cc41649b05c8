//! Do verdicts name what really happened? Only peers that something was done to may be named, all peers hear the same,
//! and some causes cannot occur at all, since nobody provokes them.

use pccl_master::state::{NEW_PLAN, NO_STATE};
use std::collections::{BTreeMap, VecDeque};

/// Verdicts that are remembered for comparison.
const KEPT: usize = 512;

/// A failed call as a peer reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure<'a> {
    pub(super) cause: &'a str,
    pub(super) culprits: &'a [u128],
    pub(super) text: &'a str,
}

/// Knowledge about the time and the place of a failure.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Group and master: names of operations are unique within.
    pub(super) scope: String,
    /// Something was done to anybody lately.
    pub(super) recently: bool,
    /// The culprits are the ends of a connection that was broken or cut.
    pub(super) edge_harmed: bool,
    /// The same for one that damaged bytes.
    pub(super) edge_damaged: bool,
}

/// Knowledge about a peer that a verdict names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Something was done to it lately, or it was told to leave.
    Touched,
    /// Nothing was done to it, or only long ago.
    Innocent,
    /// Its identity has not been reported (yet).
    Unknown,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Blame {
    verdicts: BTreeMap<String, String>,
    order: VecDeque<String>,
    /// Identities that verdicts named before their owners reported them, with the verdict.
    pub(super) unknown: Vec<(u128, String)>,
    /// Operations that failed, each counted once.
    pub(super) aborted_operations: u64,
}

impl Blame {
    /// Takes in a failure; returns what is wrong with it.
    pub(super) fn check(
        &mut self,
        failure: Failure<'_>,
        known: &Known,
        standing: impl Fn(u128) -> Standing,
    ) -> Vec<String> {
        let Failure { cause, culprits, text } = failure;
        let mut wrong = Vec::new();
        if self.has_judged(&known.scope, text) {
            return wrong;
        }
        match cause {
            // Not verdicts, but answers to one peer; whether it may hear them is judged elsewhere.
            "TooFewPeers" | "NotConnected" | "Kicked" | "MasterLost" | "OutcomeUnknown" => return wrong,
            "EdgeBroken" if known.edge_harmed => {}
            // Something was done to a third one, and the two lose the connection of the ring that was.
            "EdgeBroken" if known.recently && text.contains(NEW_PLAN) => {}
            // Through a connection that was harmed nobody fetches state either.
            "PeerDropped" if known.recently && text.contains(NO_STATE) => {}
            "Corruption" if known.edge_damaged => {}
            // Somebody has gone, who is named if the call was for given peers, or an edge is avoided.
            "WorldChanged" if culprits.is_empty() && known.recently => {}
            "PeerDied" | "PeerSilent" | "PeerLeft" | "PeerDropped" | "EdgeBroken" | "WorldChanged" => {
                let standings: Vec<Standing> = culprits.iter().map(|&id| standing(id)).collect();
                if culprits.is_empty() {
                    wrong.push(format!("the verdict names nobody: {text}"));
                } else if standings.iter().all(|&standing| standing == Standing::Innocent) {
                    wrong.push(format!("the verdict blames peers that nothing was done to: {text}"));
                }
                if standings.iter().all(|&standing| standing == Standing::Unknown) {
                    self.unknown.extend(culprits.iter().map(|&id| (id, text.to_owned())));
                }
            }
            "NoSource" | "LocalFault" if known.recently => {}
            _ => wrong.push(format!("nothing that was done explains the failure: {text}")),
        }
        wrong.extend(self.compare(&known.scope, text));
        wrong
    }

    /// The same verdict was heard from another peer: it was judged then, closer to what led to it.
    fn has_judged(&self, scope: &str, text: &str) -> bool {
        let operation =
            text.split_once(" failed while ").map(|(operation, _)| format!("{scope} {operation}"));
        operation.is_some_and(|operation| self.verdicts.get(&operation).is_some_and(|known| known == text))
    }

    /// All peers have to hear the same about one attempt of one operation.
    fn compare(&mut self, scope: &str, text: &str) -> Option<String> {
        let (operation, _) = text.split_once(" failed while ")?;
        let operation = format!("{scope} {operation}");
        if let Some(known) = self.verdicts.get(&operation) {
            return (known != text)
                .then(|| format!("two verdicts about one operation: {known:?} and {text:?}"));
        }
        self.aborted_operations += 1;
        self.verdicts.insert(operation.clone(), text.to_owned());
        self.order.push_back(operation);
        if self.order.len() > KEPT
            && let Some(old) = self.order.pop_front()
        {
            self.verdicts.remove(&old);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(blame: &mut Blame, cause: &str, culprits: &[u128], text: &str) -> usize {
        let standing = |id| match id {
            1 => Standing::Touched,
            2 => Standing::Innocent,
            _ => Standing::Unknown,
        };
        blame.check(Failure { cause, culprits, text }, &Known::default(), standing).len()
    }

    #[test]
    fn the_guilty_may_be_named_and_the_innocent_not() {
        let mut blame = Blame::default();
        assert_eq!(check(&mut blame, "PeerDied", &[1], "a failed while x"), 0);
        assert_eq!(check(&mut blame, "PeerSilent", &[2], "b failed while x"), 1);
        assert_eq!(check(&mut blame, "EdgeBroken", &[2, 1], "c failed while x"), 0);
        assert_eq!(check(&mut blame, "EdgeBroken", &[2, 2], "d failed while x"), 1);
        assert_eq!(check(&mut blame, "PeerDied", &[], "e failed while x"), 1);
        assert_eq!(check(&mut blame, "PeerDied", &[3], "f failed while x"), 0);
        assert_eq!(blame.unknown.len(), 1);
        assert_eq!(blame.aborted_operations, 6);
    }

    #[test]
    fn another_world_comes_of_something_that_was_done() {
        let wrong = |culprits: &[u128], recently| {
            let known = Known { recently, ..Known::default() };
            let standing = |id| if id == 1 { Standing::Touched } else { Standing::Innocent };
            let failure = Failure { cause: "WorldChanged", culprits, text: "an operation" };
            Blame::default().check(failure, &known, standing).len()
        };
        assert_eq!((wrong(&[], true), wrong(&[1], true)), (0, 0));
        assert_eq!((wrong(&[], false), wrong(&[2], true)), (1, 1));
    }

    #[test]
    fn a_transfer_between_two_ends_with_the_ring_of_all_when_something_was_done() {
        let wrong = |text: &str, recently| {
            let known = Known { recently, ..Known::default() };
            let failure = Failure { cause: "EdgeBroken", culprits: &[2, 3], text };
            Blame::default().check(failure, &known, |_| Standing::Innocent).len()
        };
        let text = format!("send-recv failed while transfer: edge broken ({NEW_PLAN})");
        assert_eq!((wrong(&text, true), wrong(&text, false), wrong("another", true)), (0, 1, 1));
    }

    #[test]
    fn verdicts_about_one_operation_are_equal() {
        let mut blame = Blame::default();
        assert_eq!(check(&mut blame, "PeerDied", &[1], "tag 1 failed while voting: x"), 0);
        assert_eq!(check(&mut blame, "PeerDied", &[1], "tag 1 failed while voting: x"), 0);
        assert_eq!(check(&mut blame, "PeerDied", &[1], "tag 1 failed while voting: y"), 1);
        assert_eq!(check(&mut blame, "PeerDied", &[1], "tag 2 failed while voting: y"), 0);
        assert_eq!(blame.aborted_operations, 2);
    }

    #[test]
    fn a_harmed_connection_explains_verdicts_about_innocent_ends() {
        let failure = |cause| Failure { cause, culprits: &[2, 2], text: "an operation" };
        let (harmed, damaged) = (
            Known { edge_harmed: true, ..Known::default() },
            Known { edge_harmed: true, edge_damaged: true, ..Known::default() },
        );
        let wrong = |cause, known: &Known| {
            Blame::default().check(failure(cause), known, |_| Standing::Innocent).len()
        };
        assert_eq!((wrong("EdgeBroken", &harmed), wrong("Corruption", &harmed)), (0, 1));
        assert_eq!((wrong("EdgeBroken", &damaged), wrong("Corruption", &damaged)), (0, 0));
        assert_eq!(wrong("PeerDied", &damaged), 1, "nobody dies of it");
    }

    #[test]
    fn who_hears_a_verdict_late_is_not_judged_by_what_has_happened_since() {
        let mut blame = Blame::default();
        let failure = Failure { cause: "EdgeBroken", culprits: &[2, 2], text: "an op failed while x" };
        let harmed = Known { edge_harmed: true, ..Known::default() };
        assert_eq!(blame.check(failure, &harmed, |_| Standing::Innocent), Vec::<String>::new());
        assert_eq!(blame.check(failure, &Known::default(), |_| Standing::Innocent), Vec::<String>::new());
        let other = Failure { text: "an op failed while y", ..failure };
        assert_eq!(blame.check(other, &harmed, |_| Standing::Innocent).len(), 1);
    }

    #[test]
    fn operations_of_two_groups_have_the_same_names() {
        let mut blame = Blame::default();
        for (scope, text) in [("a", "op failed while x"), ("b", "op failed while y")] {
            let known = Known { scope: scope.into(), ..Known::default() };
            let failure = Failure { cause: "PeerDied", culprits: &[1], text };
            assert_eq!(blame.check(failure, &known, |_| Standing::Touched), Vec::<String>::new());
        }
    }

    #[test]
    fn causes_that_nobody_provokes_are_violations() {
        let mut blame = Blame::default();
        for cause in
            ["MismatchedCall", "Corruption", "CallerAbort", "LocalFault", "NoSource", "MasterStopping", "New"]
        {
            assert_eq!(check(&mut blame, cause, &[1], "an operation"), 1, "{cause}");
        }
        let failure = Failure { cause: "NoSource", culprits: &[], text: "an operation" };
        let known = Known { recently: true, ..Known::default() };
        assert!(blame.check(failure, &known, |_| Standing::Innocent).is_empty());
        for (text, wrong) in [("it could not fetch the shared state", 0), ("it could not", 1)] {
            let failure = Failure { cause: "PeerDropped", culprits: &[2], text };
            assert_eq!(blame.check(failure, &known, |_| Standing::Innocent).len(), wrong);
        }
        assert_eq!(check(&mut blame, "TooFewPeers", &[], "too few"), 0);
    }
}
