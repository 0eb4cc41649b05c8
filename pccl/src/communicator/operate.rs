//! Looking at the run, and leaving it on purpose.

use super::Communicator;
use crate::{Error, limit::moment_after};
use pccl_master::doctor::{self, Patient};
use pccl_protocol::{C2m, CallKind, Cause, Host, Status, Verdict};
use std::{sync::atomic::Ordering, time::Duration};
use tinysockets::key::{RunKeys, RunName};

fn drain_over(text: String) -> Error {
    Error::TimedOut { call: CallKind::None, text, verdict: None }
}

impl Communicator {
    /// The run as the master sees it now: who is in, what each peer does, what waits for whom and since when. May be
    /// called while other calls of this communicator are blocked in other threads; it waits for nobody but the master.
    ///
    /// The master answers 64 questions of a peer at once, and then 32 per second; so long this waits.
    ///
    /// # Errors
    /// `NotConnected`, `Kicked`, `MasterLost`.
    pub fn status(&self) -> Result<Status, Error> {
        let shared = self.shared()?;
        let request = shared.control.next_request();
        shared.status.expect(request);
        shared.control.send(&C2m::StatusRequest(request));
        shared.status.wait(request).ok_or_else(|| shared.control.end_error())
    }

    /// Reports a number of the training, such as its step or its loss, to those who look at the run: the status of the
    /// master has the newest of each name, with the next sign of life of this peer. A peer may have 16 of them. The
    /// name has 1 to 32 bytes of letters, digits and `-_.:@/+=~`; the number may be infinite, or none. It waits for
    /// nothing, and may be called at any time.
    ///
    /// # Errors
    /// `InvalidArgument` for another name, and for one name too many.
    pub fn report(&self, name: &str, value: f64) -> Result<(), Error> {
        self.figures.set(name, value)
    }

    /// Finds out whether this machine could take part, with the settings of this communicator, and if not, which rule
    /// to open where: name of the master, key, ports both ways, largest packet, clock, buffers, the way to each peer
    /// that is in the run. Joins nothing, and no peer hears of it. It measures the rate to a few of them, for less than
    /// a second and with at most 256 MiB each. Best before `connect`, which takes the ports. The same as `pccl-master
    /// doctor`. A short while, up to some time-outs.
    pub fn doctor(&self) -> doctor::Report {
        let config = &self.config;
        let masters: Vec<String> = config.masters.all().iter().map(ToString::to_string).collect();
        doctor::examine(&Patient {
            run_key: config.run_keys.as_ref().map(RunKeys::used),
            // That key is the one of the run already.
            run_name: Some(RunName::default()),
            advertised_host: config.advertised_host.as_ref().map(Host::as_str).map(str::to_owned),
            bind: config.settings.bind,
            first_p2p_port: config.settings.first_p2p_port,
            first_state_port: config.settings.first_state_port,
            strict_ports: config.settings.strict_ports,
            ..Patient::new(&masters.join(","))
        })
    }

    /// Bytes of memory that this communicator holds for its operations: backups of tensors that are reduced in place,
    /// and the encoded forms of quantised tensors. Up to 1 GiB is kept between operations, until the connection to the
    /// run ends.
    pub fn buffer_bytes(&self) -> usize {
        self.shared().map_or(0, |shared| shared.operations.backups.bytes())
    }

    /// The last verdict that any call of this communicator has returned, until the next one. It survives reconnecting.
    pub fn last_verdict(&self) -> Option<Verdict> {
        self.last_verdict.lock().clone()
    }

    /// Keeps the verdict of a result, if it has one.
    pub(super) fn note_verdict<T>(&self, result: &Result<T, Error>) {
        if let Some(verdict) = result.as_ref().err().and_then(Error::verdict) {
            self.edge_failed.store(verdict.cause == Cause::EdgeBroken, Ordering::Relaxed);
            *self.last_verdict.lock() = Some(verdict.clone());
        }
    }

    /// Prepares for leaving: from now on no new call can begin (`InvalidUsage`), and this returns when those that have
    /// begun, in whatever thread, are over. They end as they would have ended without this. Follow it by
    /// [`Communicator::close`].
    ///
    /// # Errors
    /// `TimedOut` when `timeout` has passed before; then calls are possible again. `NotConnected`, `Kicked`,
    /// `MasterLost`.
    pub fn drain(&self, timeout: Duration) -> Result<(), Error> {
        let shared = self.shared()?;
        let deadline = moment_after(timeout);
        let mut activity = shared.calls.activity();
        activity.draining = true;
        if let Err(call) = shared.calls.wait_for_calls(&mut activity, deadline) {
            activity.draining = false;
            return Err(drain_over(format!("{call} is not over after {timeout:?}")));
        }
        let ops = activity.ops.clone();
        drop(activity);
        let left = ops.iter().filter(|op| !op.wait_until_done(deadline)).count();
        if left > 0 {
            shared.calls.activity().draining = false;
            return Err(drain_over(format!("{left} all-reduces are not over after {timeout:?}")));
        }
        if shared.control.end().is_some() { Err(shared.control.end_error()) } else { Ok(()) }
    }

    /// Leaves the run as soon as the calls that have begun are over, or when `timeout` has passed: nobody sees an abort
    /// because of a peer that leaves between its operations. [`Communicator::drain`], then [`Communicator::close`].
    ///
    /// # Errors
    /// `TimedOut` if calls had to be cut off; `Kicked` or `MasterLost` if the run was over already for this peer. In
    /// any case this communicator is closed afterwards.
    pub fn close_within(&self, timeout: Duration) -> Result<(), Error> {
        let drained = match self.drain(timeout) {
            Err(Error::NotConnected) => Ok(()),
            other => other,
        };
        self.close();
        drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use tinysockets::key::RunKey;

    #[test]
    fn a_run_name_makes_another_key_and_is_refused_without_one() {
        let key = RunKey::from_bytes([1; 32]);
        let built = |address: &str, name: Option<&str>, key: Option<&RunKey>| {
            let builder = name.into_iter().fold(Communicator::builder(address), Builder::run_name);
            key.into_iter().fold(builder, |builder, key| builder.run_key(&key.to_text())).build()
        };
        let named = key.of_run(&"A".parse().expect("a name"));
        for (address, name) in
            [("127.0.0.1:1", Some("A")), ("pccl://127.0.0.1:1/A", None), ("pccl://127.0.0.1:1/B", Some("A"))]
        {
            let comm = built(address, name, Some(&key)).expect("good settings");
            assert_eq!(comm.config.run_keys.as_ref().map(RunKeys::used), Some(named.clone()), "{address}");
        }
        for (address, name, text) in [
            ("127.0.0.1:1", Some("two words"), "run_name: "),
            ("pccl://127.0.0.1:1/a/b", None, "master address: "),
        ] {
            let error = built(address, name, Some(&key)).expect_err(text);
            assert!(matches!(&error, Error::InvalidArgument(it) if it.starts_with(text)), "{error}");
        }
        let comm = built("127.0.0.1:1", Some("A"), None).expect("the key may still come");
        let error = comm.connect().expect_err("nothing proves the name");
        assert!(matches!(&error, Error::InvalidArgument(it) if it.contains("no run key")), "{error}");
    }
}
