//! Groups with given members: the callers say who is in, in which order, and nobody else is.

use super::Communicator;
use crate::{Error, World, limit::Limit};
use pccl_protocol::{
    C2m, CallKind, FormGroup, GiveUp, GroupUuid, M2c, MemberRef, Name, PeerId, VoteRef, limits,
};
use std::time::Duration;

/// The limit of a forming for which the caller has named none.
const USUAL_LIMIT: Duration = Duration::from_secs(60);

/// How a caller names a member of a group that is to be formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// By its [identity](Communicator::id): this one connection of it, and no later one.
    Peer(PeerId),
    /// By its [name](crate::Builder::name): the peer that has this name. A name that two peers bear is an error.
    Name(String),
}

impl From<PeerId> for Member {
    fn from(peer: PeerId) -> Self {
        Self::Peer(peer)
    }
}

impl From<&str> for Member {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl Member {
    fn reference(&self) -> Result<MemberRef, Error> {
        match self {
            Self::Peer(peer) => Ok(MemberRef::Peer(*peer)),
            Self::Name(name) if !name.is_empty() && Name::new(name).as_str() == name => {
                Ok(MemberRef::Name(Name::new(name)))
            }
            Self::Name(name) => Err(Error::InvalidArgument(format!(
                "{name:?} is the name of no peer: 1 to {} bytes of letters, digits and -_.:@/+=~",
                limits::MAX_NAME_BYTES
            ))),
        }
    }
}

impl Communicator {
    /// Forms a group of `members`: the place in the list is the rank, and the order in which data flows. All of them
    /// call it with the same `uuid` and list, and it returns when they are connected. Only for communicators that were
    /// built with [`Builder::formed_groups`](crate::Builder::formed_groups); [`Communicator::connect`] comes before.
    ///
    /// From then on the members stay the same until the next forming: nobody is let in, and when one is lost, all that
    /// is under way and whatever is called fails with the verdict
    /// [`GroupBroken`](crate::Cause::GroupBroken), which names it. A forming replaces the groups that its members were
    /// in; a peer that is left over in those gets the same verdict.
    ///
    /// A `uuid` is used once: for another try, after a failure too, all take a fresh one. Members who call late learn
    /// what became of theirs.
    ///
    /// The limit is the call time-out, or a minute if there is none.
    ///
    /// ```no_run
    /// # use pccl::{Communicator, Member};
    /// let comm = Communicator::builder("127.0.0.1:48148").name("b").formed_groups(true).build()?;
    /// comm.connect()?;
    /// let world = comm.form_group(1, &[Member::from("a"), Member::from("b")])?;
    /// assert_eq!(world.rank, 1);
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Aborted` with the verdict, the same for all who have called: lists or uuids that differ, a name that two bear,
    /// a `uuid` that was used (`MismatchedCall`), a member that was lost, two that cannot connect (`EdgeBroken`).
    /// `TimedOut` when the limit has passed; the verdict names who has not called, and the others get it too.
    /// `InvalidArgument`, `InvalidUsage`, `PendingAsyncOps`, `NotConnected`, `Kicked`, `MasterLost`.
    pub fn form_group(&self, uuid: u128, members: &[Member]) -> Result<World, Error> {
        self.form_group_within(uuid, members, self.call_timeout().unwrap_or(USUAL_LIMIT))
    }

    /// As [`Communicator::form_group`], with a limit of its own.
    ///
    /// # Errors
    /// As [`Communicator::form_group`].
    pub fn form_group_within(
        &self,
        uuid: u128,
        members: &[Member],
        timeout: Duration,
    ) -> Result<World, Error> {
        if members.is_empty() || members.len() > limits::MAX_PEERS {
            let text = format!("{} members: a group has 1 to {}", members.len(), limits::MAX_PEERS);
            return Err(Error::InvalidArgument(text));
        }
        let members = members.iter().map(Member::reference).collect::<Result<Vec<_>, _>>()?;
        let limit = Limit::of(Some(timeout));
        let call = self.exclusive(CallKind::FormGroup, true, limit)?;
        let (control, request) = (&call.shared.control, call.shared.control.next_request());
        control.send(&C2m::FormGroup(FormGroup { request, uuid: GroupUuid(uuid), members }));
        let pick = |packet: M2c| match packet {
            M2c::GroupFormed(formed) if formed.request == request => Ok(Ok(())),
            M2c::FormFailed(failed) if failed.request == request => Ok(Err(failed.verdict)),
            other => Err(other),
        };
        let mut given_up = false;
        let answer = match control.receive(limit.deadline(), pick) {
            Err(Error::TimedOut { .. }) => {
                given_up = true;
                let vote = VoteRef::Forming(request);
                control.send(&C2m::GiveUp(GiveUp { vote, limit_ms: Some(limit.millis()) }));
                // The master decides at once; bounded by the life of the session.
                control.receive(None, pick)
            }
            other => other,
        };
        let result = answer.and_then(|formed| {
            formed.map_err(|verdict| Error::judged(CallKind::FormGroup, verdict, given_up))
        });
        self.note_verdict(&result);
        drop(call);
        result?;
        let known = self.world.lock().clone();
        *self.formed.lock() = Some(known.clone());
        Ok(known.world.clone())
    }
}
