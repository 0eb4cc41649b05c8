//! A command that is run now and then until it succeeds.

use super::{Given, Waited, signals};
use crate::{Error, threads};
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a run may take.
const RUN_LIMIT: Duration = Duration::from_secs(10);
/// How often a run that is under way is looked at: only while it is.
const LOOK: Duration = Duration::from_millis(20);

/// The thread that runs a command. It has ended when this is gone.
#[derive(Debug)]
pub(super) struct Watch {
    thread: Option<JoinHandle<()>>,
    /// Not that of the notice: this one ends with the watch.
    stop: Arc<Given>,
}

impl Watch {
    pub(super) fn start(command: &str, every: Duration, given: &Arc<Given>) -> Result<Self, Error> {
        let stop = Arc::new(Given::default());
        let (command, given, stopped) = (command.to_owned(), given.clone(), stop.clone());
        let thread = threads::spawn("pccl-notice", move || watch(&command, every, &given, &stopped))?;
        Ok(Self { thread: Some(thread), stop })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.give("the watch is over");
        if let Some(thread) = self.thread.take() {
            // It has no way to panic; if it had, there would be nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn watch(command: &str, every: Duration, given: &Given, stop: &Given) {
    loop {
        match run(command, stop) {
            Ok(Some(status)) if status.success() => return given.give(&format!("command {command:?}")),
            Ok(_) => {}
            Err(error) => log::warn!("cannot run {command:?}: {error}"),
        }
        let pause = Instant::now().checked_add(every);
        if given.by().is_some() || stop.wait(pause) == Waited::Given {
            return;
        }
    }
}

/// Runs it once. `None` if it took too long, or is to stop.
fn run(command: &str, stop: &Given) -> io::Result<Option<ExitStatus>> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    // A group of its own, so that what it has started ends with it.
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = shell.spawn()?;
    let limit = Instant::now() + RUN_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let now = Instant::now();
        if now >= limit || stop.wait(Some(now + LOOK)) == Waited::Given {
            kill(&mut child);
            return Ok(None);
        }
    }
}

/// Ends the command and all that it has started. It has not been waited for, so its group is still its own.
fn kill(child: &mut Child) {
    signals::kill_group(child.id());
    // It has been killed: this returns at once.
    if let Err(error) = child.wait() {
        log::warn!("cannot wait for a command that was killed: {error}");
    }
}
