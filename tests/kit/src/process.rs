//! Processes that do not outlive whoever started them.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
};

/// Longest line that is taken in as one, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// A signal for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Terminate,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// A running process, with pipes to its standard input and from its standard output. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        Ok(Self { child, status: None })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output, for whoever asks first.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its standard error, if the command has a pipe for it, for whoever asks first.
    pub fn errors(&mut self) -> Option<impl Read + use<>> {
        self.child.stderr.take()
    }

    /// Hands each line of its standard output to `take`, on a thread of its own, and at the end `None`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn listen(&mut self, mut take: impl FnMut(Option<String>) + Send + 'static) -> io::Result<()> {
        let output = self.output();
        let body = move || {
            each_line(output, LINE_BYTES_MAX, |line| take(Some(line)));
            take(None);
        };
        thread::Builder::new().name("child output".into()).spawn(body).map(drop)
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// If it does not read any more.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        let input = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    /// Ends its standard input.
    pub fn hang_up(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Sends a signal, unless the process is known to have ended.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match (self.status, signal) {
            (Some(_), _) => Ok(()),
            (None, Signal::Kill) => self.child.kill(),
            (None, Signal::Terminate) => send(self.pid(), libc::SIGTERM),
            (None, Signal::Stop) => send(self.pid(), libc::SIGSTOP),
            (None, Signal::Continue) => send(self.pid(), libc::SIGCONT),
        }
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            // Here and in `wait` its number is given back; from then on it is never signalled.
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Waits for its end, which should come by itself.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }

    /// Kills it and waits for its end.
    pub fn end(&mut self) {
        if self.status.is_none() {
            // Fails only if it has ended by itself, and then waiting is all that is left to do.
            drop(self.child.kill());
            drop(self.wait());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process that answers each line with one.
pub struct Partner {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl Partner {
    /// Starts a program.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut process = Process::start(&mut command)?;
        let output = process.output().ok_or_else(|| io::Error::other("a process without pipes"))?;
        Ok(Self { process, output: BufReader::new(output) })
    }

    /// As [`Process::tell`].
    ///
    /// # Errors
    /// As there.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        self.process.tell(line)
    }

    /// Its next line.
    ///
    /// # Errors
    /// If it has ended.
    pub fn listen(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a process ended; see its messages above"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Ends its standard input and waits for its end.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn finish(mut self) -> io::Result<ExitStatus> {
        self.process.hang_up();
        self.process.wait()
    }
}

fn send(pid: u32, signal: libc::c_int) -> io::Result<()> {
    // Zero and negative numbers would mean whole process groups.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: `kill` takes two numbers and touches no memory of this process. The child has not been waited for, so its
    // number is its own.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls `take` with each line until the stream ends; a line of more than `bytes_max` arrives in pieces.
pub fn each_line(stream: Option<impl Read>, bytes_max: usize, mut take: impl FnMut(String)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(bytes_max as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            // The last line of a killed process may be cut off; such a line has never been finished.
            Ok(_) if line.last() != Some(&b'\n') && line.len() < bytes_max => return,
            Ok(_) => take(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_or_in_bounded_pieces_and_a_torn_one_not_at_all() {
        let text = [&[b'x'; 15][..], b"\n\xff\xfe\n\nthr"].concat();
        let mut lines = Vec::new();
        each_line(Some(&text[..]), 10, |line| lines.push(line));
        assert_eq!(lines, ["xxxxxxxxxx", "xxxxx", "\u{fffd}\u{fffd}", ""]);
    }

    #[test]
    fn a_partner_answers_until_it_is_gone() {
        let mut partner = Partner::start(Command::new("cat")).expect("cat");
        partner.tell("a line").expect("it reads");
        assert_eq!(partner.listen().expect("an answer"), "a line");
        partner.kill();
        assert!(partner.listen().is_err());
        assert!(Partner::start(Command::new("cat")).expect("cat").finish().expect("a child").success());
    }

    #[test]
    fn a_process_listens_stops_goes_on_and_ends() {
        let mut process = Process::start(&mut Command::new("cat")).expect("cat");
        let (sender, lines) = std::sync::mpsc::channel();
        process.listen(move |line| drop(sender.send(line))).expect("a thread");
        process.signal(Signal::Stop).expect("it lives");
        process.tell("a line").expect("it reads");
        process.signal(Signal::Continue).expect("it lives");
        assert_eq!(lines.recv().expect("an answer").as_deref(), Some("a line"));
        assert_eq!(process.ended().expect("a child"), None);
        process.hang_up();
        assert_eq!(lines.recv().expect("the end"), None);
        assert!(process.wait().expect("a child").success());
        process.signal(Signal::Kill).expect("nobody is killed");
    }
}
