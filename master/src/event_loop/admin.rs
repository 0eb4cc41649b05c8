//! The operator's socket: a Unix socket that only the owner of this process can open, with one line for a request and
//! one for the answer.
//!
//! `kick PEER REASON`, `accept-revision REVISION [GROUP]`, `rotate-key KEY[,STILL ACCEPTED] [DROPPED PEER]...`,
//! `step-down`, `end-run` and `take-over` answer `ok ...` or `error ...`. Few connections at a time, each with little
//! memory and a deadline, and none is ever waited for.

use super::EventLoop;
use crate::state::Input;
use mio::net::{UnixListener, UnixStream};
use pccl_protocol::{GroupId, Revision};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};
use tinysockets::reactor::Reactor;

/// Longest request, in bytes.
const MAX_LINE_BYTES: usize = 2048;
/// Connections at a time; one more and the oldest is dropped.
const MAX_CONNECTIONS: usize = 8;
/// Time for the request, and for taking the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time for an answer that something else is waited for.
const LATE_ANSWER: Duration = Duration::from_secs(60);
/// How often a lock that somebody else has is tried again.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
/// Connections that wait in the kernel.
const BACKLOG: i32 = 8;

/// The listening socket and its file, which is removed at the end.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    socket: std::os::unix::net::UnixListener,
    path: PathBuf,
    /// Device and inode of the file: another one in its place is not ours to remove.
    file: (u64, u64),
}

impl AdminSocket {
    /// Listens at `path`. A socket there that nobody listens on any more is replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        // Two masters that start at once must not take each other's new file for an old one. The end of this function
        // ends the lock.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let _turn = lock(directory.unwrap_or(Path::new(".")))?;
        match Self::bind_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                Self::bind_new(path)
            }
            other => other,
        }
    }

    fn bind_new(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let metadata = fs::symlink_metadata(path)?;
        // Before anybody can connect.
        let listening = fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .and_then(|()| socket.listen(BACKLOG))
            .and_then(|()| socket.set_nonblocking(true));
        if let Err(error) = listening {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        let file = (metadata.dev(), metadata.ino());
        Ok(Self { socket: socket.into(), path: path.to_owned(), file })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Locks a directory against other masters. It waits for another process that has the lock, though not for ever.
fn lock(directory: &Path) -> io::Result<Option<fs::File>> {
    // Without the right to read it there is no lock. Whether it is there at all, the bind will say.
    let Ok(file) = fs::File::open(directory) else { return Ok(None) };
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = file.try_lock() {
        match error {
            fs::TryLockError::WouldBlock if Instant::now() < deadline => thread::sleep(LOCK_INTERVAL),
            // Not every file system has locks; the race is unlikely enough.
            fs::TryLockError::Error(_) => break,
            fs::TryLockError::WouldBlock => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("another process keeps {} locked", directory.display()),
                ));
            }
        }
    }
    Ok(Some(file))
}

/// Removes the socket of a process that has gone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let in_the_way = |text: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, text.to_owned()));
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return in_the_way("a file that is no socket is in the way");
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => in_the_way("another process listens there (another master?)"),
    }
}

/// One operator.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    deadline: Instant,
    request: Vec<u8>,
    /// The rest of the answer, once there is one.
    answer: Option<Vec<u8>>,
}

/// The next step of a connection.
enum Step {
    Wait,
    Answer(String),
    Done,
}

impl Connection {
    /// Moves what can be moved without waiting.
    fn step(&mut self) -> Step {
        match &mut self.answer {
            None => self.read(),
            Some(left) => write_some(&mut self.stream, left),
        }
    }

    fn read(&mut self) -> Step {
        let mut piece = [0; MAX_LINE_BYTES];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Step::Done,
                Ok(n) => {
                    self.request.extend_from_slice(&piece[..n]);
                    if let Some(end) = self.request.iter().position(|&byte| byte == b'\n') {
                        self.request.truncate(end);
                        return Step::Answer(String::from_utf8_lossy(&self.request).into_owned());
                    }
                    if self.request.len() > MAX_LINE_BYTES {
                        return Step::Done;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
                Err(_) => return Step::Done,
            }
        }
    }
}

fn write_some(stream: &mut UnixStream, left: &mut Vec<u8>) -> Step {
    while !left.is_empty() {
        match stream.write(left) {
            Ok(0) => return Step::Done,
            Ok(n) => drop(left.drain(..n)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
            Err(_) => return Step::Done,
        }
    }
    Step::Done
}

/// The operator's socket in the care of the loop.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: UnixListener,
    connections: BTreeMap<u64, Connection>,
    /// Somebody may wait to be accepted.
    is_ready: bool,
    /// Its file goes when the loop ends.
    _file: AdminSocket,
}

impl Admin {
    pub(crate) fn register(socket: AdminSocket, reactor: &mut Reactor) -> io::Result<Self> {
        let mut listener = UnixListener::from_std(socket.socket.try_clone()?);
        reactor.add_waking(&mut listener)?;
        Ok(Self { listener, connections: BTreeMap::new(), is_ready: true, _file: socket })
    }

    /// When the first connection's time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.connections.values().map(|connection| connection.deadline).min()
    }

    fn accept(&mut self, reactor: &mut Reactor) {
        // An edge is told once.
        self.is_ready |= reactor.take_woken();
        while self.is_ready {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Any other error ends the turn: the next one tries again, every pulse at the latest.
                    self.is_ready = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            if let Ok(key) = reactor.add(&mut stream) {
                let deadline = Instant::now() + TIMEOUT;
                let connection = Connection { stream, deadline, request: Vec::new(), answer: None };
                self.connections.insert(key, connection);
            }
            if self.connections.len() > MAX_CONNECTIONS {
                self.connections.pop_first();
            }
        }
    }
}

impl EventLoop {
    /// Serves the operator's socket. All of its connections are looked at each time: there are few.
    pub(crate) fn admin_turn(&mut self) {
        let Some(admin) = &mut self.admin else { return };
        admin.accept(&mut self.reactor);
        let now = Instant::now();
        admin.connections.retain(|_, connection| connection.deadline > now);
        let keys: Vec<u64> = admin.connections.keys().copied().collect();
        for key in keys {
            self.admin_step(key);
        }
    }

    fn admin_step(&mut self, key: u64) {
        let Some(connection) = self.admin.as_mut().and_then(|admin| admin.connections.get_mut(&key)) else {
            return;
        };
        let done = match connection.step() {
            Step::Wait => false,
            Step::Done => true,
            Step::Answer(request) => match self.obey_later(key, &request) {
                Some(done) => self.admin_answer(key, done),
                None => false,
            },
        };
        if let (true, Some(admin)) = (done, &mut self.admin) {
            admin.connections.remove(&key);
        }
    }

    /// Begins to write an answer. `true`: all of it is written, or nobody takes it.
    fn admin_answer(&mut self, key: u64, done: Result<String, String>) -> bool {
        let answer = match done {
            Ok(text) => format!("ok {text}\n"),
            Err(text) => format!("error {text}\n"),
        };
        let Some(admin) = &mut self.admin else { return true };
        let Some(connection) = admin.connections.get_mut(&key) else { return true };
        connection.answer = Some(answer.into_bytes());
        matches!(connection.step(), Step::Done)
    }

    /// Answers the operator who waits, if there is one.
    pub(crate) fn answer_operator(&mut self, done: Result<String, String>) {
        let Some(key) = self.operator.take() else { return };
        if self.admin_answer(key, done)
            && let Some(admin) = &mut self.admin
        {
            admin.connections.remove(&key);
        }
    }

    /// Carries out a request of the operator; `None`: its answer comes later.
    fn obey_later(&mut self, key: u64, request: &str) -> Option<Result<String, String>> {
        match request.trim() {
            "step-down" if self.standing.is_some() => Some(Err(self.who_acts())),
            "step-down" => {
                self.leaving.get_or_insert_with(Instant::now);
                self.wait_for_operator(key)
            }
            "end-run" if self.standing.is_some() => Some(Err(self.who_acts())),
            "end-run" if self.what_is_held().is_some() => {
                Some(Err("another master could have taken over, and this one cannot end its run".into()))
            }
            "end-run" => {
                log::warn!("an operator ends the run");
                self.ends_run.store(true, Ordering::Release);
                self.leaving.get_or_insert_with(Instant::now);
                Some(Ok("the run ends".into()))
            }
            "take-over" => match self.force() {
                Ok(()) => self.wait_for_operator(key),
                Err(text) => Some(Err(text)),
            },
            request => Some(self.obey(request)),
        }
    }

    /// The answer to this operator comes later.
    fn wait_for_operator(&mut self, key: u64) -> Option<Result<String, String>> {
        let connections = self.admin.as_mut().map(|admin| &mut admin.connections)?;
        if self.operator.is_some_and(|other| connections.contains_key(&other)) {
            return Some(Err("another operator waits for an answer".into()));
        }
        self.operator = Some(key);
        connections.get_mut(&key)?.deadline = Instant::now() + LATE_ANSWER;
        None
    }

    /// Carries out a request of the operator. The answer is one line.
    fn obey(&mut self, request: &str) -> Result<String, String> {
        let mut words = request.trim().splitn(3, ' ');
        if let (true, Some(elsewhere)) = (!request.starts_with("rotate-key "), self.elsewhere()) {
            return Err(elsewhere);
        }
        match (words.next(), words.next(), words.next().map(str::trim)) {
            (Some("kick"), Some(peer), Some(reason)) if !reason.is_empty() => {
                let (peer, name) = self.state.find_peer(peer)?;
                log::warn!("an operator removes {name}: {reason}");
                self.input(Input::Kick { peer, reason: reason.to_owned() });
                Ok(format!("removed {name}"))
            }
            (Some("accept-revision"), Some(revision), group) => {
                let revision = Revision(number(revision)?);
                let group = group.map(|group| Ok::<_, String>(GroupId(number(group)?))).transpose()?;
                let done = self.state.describe_choice(group, revision)?;
                log::warn!("an operator accepts revision {revision}: {done}");
                self.input(Input::AcceptRevision { group, revision });
                Ok(done)
            }
            (Some("rotate-key"), Some(keys), dropped) => {
                let dropped: Vec<&str> = dropped.unwrap_or_default().split_whitespace().collect();
                self.rotate_key(keys.replace(',', "\n").parse(), &dropped)
            }
            _ => Err("requests are: kick PEER REASON; accept-revision REVISION [GROUP]; \
                      rotate-key KEY[,STILL ACCEPTED] [DROPPED PEER]...; step-down; end-run; take-over"
                .into()),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number of that kind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pccl-admin-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn the_file_is_private_and_goes_with_its_owner() {
        let path = directory("private").join("admin.sock");
        let socket = AdminSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = AdminSocket::bind(&path).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(socket);
        assert!(!path.exists());
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn of_many_that_start_at_once_one_gets_it() {
        let path = directory("race").join("admin.sock");
        for _ in 0..500 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let barrier = std::sync::Barrier::new(4);
            let bound: Vec<_> = thread::scope(|scope| {
                let start = || {
                    barrier.wait();
                    AdminSocket::bind(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
            });
            assert_eq!(bound.len(), 1);
            std::os::unix::net::UnixStream::connect(&path).unwrap();
            drop(bound);
            assert!(!path.exists());
        }
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else() {
        let path = directory("stale").join("admin.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a listener that is dropped leaves its file");
        let first = AdminSocket::bind(&path).unwrap();
        // Somebody else's file in its place stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(first);
        assert!(AdminSocket::bind(&path).unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
