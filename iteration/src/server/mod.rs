//! A store server that a stock TCPStore client of PyTorch can use.
//!
//! One thread, non-blocking sockets. No client can stop it or make it grow without end: keys, values, commands,
//! connections, what is read ahead and what waits to be written are bounded, and whoever does not introduce itself is
//! dropped. There is no authentication in this protocol: listen where only friends can connect.

mod conn;
mod engine;
mod event_loop;
mod journal;
mod waits;

use crate::{data::Limits, protocol::keys::BESIDE_MASTER};
use event_loop::EventLoop;
use journal::Journal;
use parking_lot::{Condvar, Mutex};
use std::{
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tinysockets::{listeners, reactor::Stopper};

/// Time in which the name of the address to listen on must be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Address to listen on, that of this machine alone unless it is set: whoever reaches it reads and changes
    /// everything. Port 0 takes a free one; `[::]:PORT` means all addresses of both families.
    pub listen: String,
    /// File that keeps all keys over a restart. Without it a server that is started again is empty, which members of a
    /// run notice and do not go on from.
    pub file: Option<PathBuf>,
    /// Bytes of all keys and values; whoever writes more is disconnected.
    pub max_bytes: usize,
    /// Bytes that connections may hold: commands that are incomplete, and answers that are not taken.
    pub max_buffer_bytes: usize,
    /// The same of all connections from one address; one with which they hold more is disconnected.
    pub max_client_bytes: usize,
    /// Most connections.
    pub max_connections: usize,
    /// Time in which a new connection must introduce itself.
    pub handshake_timeout: Duration,
    /// This server shares a process with a master, so it is gone when the master is. Communicators are told.
    pub beside_master: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:29500".into(),
            file: None,
            max_bytes: Limits::default().max_bytes,
            max_buffer_bytes: 1 << 30,
            max_client_bytes: 256 << 20,
            max_connections: 65_536,
            handshake_timeout: Duration::from_secs(10),
            beside_master: false,
        }
    }
}

/// Why a server could not start, or why it ended by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ServerError {
    /// The address to listen on cannot be understood, resolved or bound.
    #[error("the store cannot listen on {listen:?}: {reason}")]
    Listen {
        /// The address as given.
        listen: String,
        /// The reason why it cannot be used.
        reason: String,
    },
    /// The file cannot be used. Nothing is served that could be forgotten.
    #[error("the store cannot use its file {path:?}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: Arc<io::Error>,
    },
    /// The system refused what the event loop needs.
    #[error("the event loop of the store cannot run: {0}")]
    EventLoop(Arc<io::Error>),
    /// A defect of the server: its thread panicked.
    #[error("the store ended by an internal error, please report it")]
    Panicked,
}

#[derive(Default)]
struct Ending {
    result: Mutex<Option<Result<(), ServerError>>>,
    ended: Condvar,
}

/// A running server; dropping it stops it.
pub struct StoreServer {
    local_addr: SocketAddr,
    stopper: Stopper,
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts a server. When this returns, clients can connect.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn launch(config: ServerConfig) -> Result<Self, ServerError> {
        let listen_error = |reason: String| ServerError::Listen { listen: config.listen.clone(), reason };
        let addresses =
            listeners::resolve(&config.listen, Instant::now() + RESOLVE_TIMEOUT).map_err(listen_error)?;
        let listeners = listeners::bind_all(&addresses).map_err(|error| listen_error(error.to_string()))?;
        let local_addr = match listeners.first().map(std::net::TcpListener::local_addr) {
            Some(Ok(address)) => address,
            _ => return Err(listen_error("no address to listen on".into())),
        };
        let limits = Limits { max_bytes: config.max_bytes };
        let (journal, mut data) = match &config.file {
            None => (None, crate::data::Data::new(limits)),
            Some(path) => {
                let (journal, data) = Journal::open(path, limits).map_err(|error| file_error(path, error))?;
                (Some(journal), data)
            }
        };
        let marker = format!("/{BESIDE_MASTER}");
        data.delete(marker.as_bytes());
        if config.beside_master {
            let marked = data.set(marker.as_bytes(), b"1");
            marked.map_err(|refusal| listen_error(refusal.to_string()))?;
        }
        let loop_error = |error| ServerError::EventLoop(Arc::new(error));
        let file = config.file.clone();
        let (event_loop, stopper) = EventLoop::new(listeners, data, journal, config).map_err(loop_error)?;
        let ending = Arc::new(Ending::default());
        let for_thread = Arc::clone(&ending);
        let thread = thread::Builder::new()
            .name("pccl-store".into())
            .spawn(move || {
                let result = match catch_unwind(AssertUnwindSafe(|| event_loop.run())) {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(match (error, file) {
                        (event_loop::Fatal::File(error), Some(path)) => file_error(&path, error),
                        (event_loop::Fatal::File(error) | event_loop::Fatal::Poll(error), _) => {
                            loop_error(error)
                        }
                    }),
                    Err(_) => Err(ServerError::Panicked),
                };
                if let Err(error) = &result {
                    log::error!("{error}");
                }
                *for_thread.result.lock() = Some(result);
                for_thread.ended.notify_all();
            })
            .map_err(loop_error)?;
        let is_loopback = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        match addresses.iter().find(|address| !is_loopback(address)) {
            None => log::info!("the store listens on {local_addr}, for this machine only"),
            Some(open) => log::warn!(
                "the store listens on {open}: whoever reaches that reads and changes everything in it, since its \
                 protocol has no secrets; keep the port private (a firewall, or a private network)"
            ),
        }
        Ok(Self { local_addr, stopper, ending, thread: Some(thread) })
    }

    /// The address that it listens on, with the real port. If it listens on several, the first of them.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Asks the server to stop and returns at once.
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Something with which another thread can stop it.
    pub fn stop_handle(&self) -> ServerStop {
        ServerStop(self.stopper.clone())
    }

    /// Waits until the server has ended: `Ok` if it was stopped.
    ///
    /// # Errors
    /// Why it ended by itself.
    pub fn wait(&self) -> Result<(), ServerError> {
        let mut result = self.ending.result.lock();
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            self.ending.ended.wait(&mut result);
        }
    }
}

fn file_error(path: &std::path::Path, error: io::Error) -> ServerError {
    ServerError::File { path: path.to_owned(), error: Arc::new(error) }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and stores its result.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreServer").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

/// Stops a [`StoreServer`] from elsewhere.
#[derive(Clone)]
pub struct ServerStop(Stopper);

impl ServerStop {
    /// As [`StoreServer::stop`].
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl std::fmt::Debug for ServerStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerStop")
    }
}
