//! A blocking client of a TCPStore: PyTorch's, or the server of this crate.

mod connection;

use crate::{
    store::{Store, StoreError, check_limits},
    wire::{Code, put_number, put_string},
};
use connection::{Connection, Failure};
use parking_lot::Mutex;
use std::{
    thread,
    time::{Duration, Instant},
};
use tinysockets::address::{AddressError, HostPort};

/// Pause before a broken connection is made anew.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Keys that are asked for before the answers, one byte each, are read: these fit any buffer, so that neither end waits
/// for the other one to read.
const CHECKS_AT_ONCE: usize = 512;

/// A [`Store`] over a TCPStore. Waits have a connection of their own, so that they hold up nobody else; threads may
/// share one client.
///
/// Connections are made when they are needed and made anew when they break. Calls that may be carried out twice are
/// tried again until their deadline; `add` and `append` never are.
#[derive(Debug)]
pub struct TcpStoreClient {
    target: HostPort,
    calls: Mutex<Option<Connection>>,
    waits: Mutex<Option<Connection>>,
}

/// Whether a call may be made again when a connection breaks after it was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    /// Not blindly: the name of the call.
    No(&'static str),
}

impl TcpStoreClient {
    /// A client of the store at `address` (`host:port`), which must answer before `deadline`.
    ///
    /// # Errors
    /// The address is none, or nobody answers there like a TCPStore.
    pub fn connect(address: &str, deadline: Instant) -> Result<Self, StoreError> {
        let target = parse(address)?;
        let this = Self { target, calls: Mutex::default(), waits: Mutex::default() };
        this.call(Again::Yes, deadline, |connection| connection.ping(deadline))?;
        Ok(this)
    }

    /// Refuses what is no address of a store.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the reason.
    pub fn check_address(address: &str) -> Result<(), StoreError> {
        parse(address).map(drop)
    }

    /// The address.
    pub fn address(&self) -> String {
        self.target.to_string()
    }

    /// Number of keys in the store.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn num_keys(&self, deadline: Instant) -> Result<i64, StoreError> {
        self.ask(Again::Yes, deadline, &[Code::NumKeys as u8], Connection::read_number)
    }

    /// Sends a command and reads its answer.
    fn ask<T>(
        &self,
        again: Again,
        deadline: Instant,
        command: &[u8],
        mut answer: impl FnMut(&mut Connection, Instant) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.call(again, deadline, |connection| {
            connection.send(command, deadline)?;
            answer(connection, deadline)
        })
    }

    fn call<T>(
        &self,
        again: Again,
        deadline: Instant,
        work: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let Some(mut slot) = self.calls.try_lock_until(deadline) else {
            return Err(self.unreachable("another call has not ended in time"));
        };
        self.work(&mut slot, again, deadline, work)
    }

    fn work<T>(
        &self,
        slot: &mut Option<Connection>,
        again: Again,
        deadline: Instant,
        mut work: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        loop {
            // The end of an idle connection is noticed before anything is sent.
            if slot.as_ref().is_some_and(Connection::is_dead) {
                *slot = None;
            }
            let connection = match slot {
                Some(connection) => connection,
                None => match Connection::open(&self.target, deadline) {
                    Ok(connection) => slot.insert(connection),
                    Err(reason) if Instant::now() + RECONNECT_PAUSE < deadline => {
                        log::debug!("store at {}: {reason}", self.target);
                        thread::sleep(RECONNECT_PAUSE);
                        continue;
                    }
                    Err(reason) => return Err(self.unreachable(&reason)),
                },
            };
            let failure = match work(connection) {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            // The rest of an answer may still come: this connection is of no use any more.
            *slot = None;
            match (failure, again) {
                (Failure::Malformed(reason), _) => {
                    return Err(StoreError::Malformed { store: self.target.to_string(), reason });
                }
                (Failure::Io(error), Again::No(call)) => {
                    let (store, reason) = (self.target.to_string(), error.to_string());
                    return Err(StoreError::Uncertain { store, call, reason });
                }
                (Failure::Io(error), Again::Yes) if Instant::now() + RECONNECT_PAUSE < deadline => {
                    log::debug!("store at {}: {error}, trying again", self.target);
                    thread::sleep(RECONNECT_PAUSE);
                }
                (Failure::Io(error), Again::Yes) => return Err(self.unreachable(&error.to_string())),
            }
        }
    }

    fn unreachable(&self, reason: &str) -> StoreError {
        StoreError::Unreachable { store: self.target.to_string(), reason: reason.to_owned() }
    }
}

fn parse(address: &str) -> Result<HostPort, StoreError> {
    address.parse().map_err(|error: AddressError| StoreError::Refused(error.to_string()))
}

/// A key as PyTorch's client writes it, so that both see the same keys.
fn put_key(out: &mut Vec<u8>, key: &str) {
    put_number(out, key.len() as i64 + 1);
    out.push(b'/');
    out.extend_from_slice(key.as_bytes());
}

fn with_key(code: Code, key: &str) -> Vec<u8> {
    let mut command = vec![code as u8];
    put_key(&mut command, key);
    command
}

fn with_keys(code: Code, keys: &[String]) -> Vec<u8> {
    let mut command = vec![code as u8];
    put_number(&mut command, keys.len() as i64);
    keys.iter().for_each(|key| put_key(&mut command, key));
    command
}

impl Connection {
    /// Which of these keys have a value. As long as one is missing each has a question of its own, but nobody waits for
    /// the answer to one before the next.
    fn which_are_there(&mut self, keys: &[String], deadline: Instant) -> Result<Vec<bool>, Failure> {
        self.send(&with_keys(Code::Check, keys), deadline)?;
        if self.read_is_ready(deadline)? {
            return Ok(vec![true; keys.len()]);
        }
        let mut is_there = Vec::with_capacity(keys.len());
        for some in keys.chunks(CHECKS_AT_ONCE) {
            let questions: Vec<u8> =
                some.iter().flat_map(|key| with_keys(Code::Check, std::slice::from_ref(key))).collect();
            self.send(&questions, deadline)?;
            for _ in some {
                is_there.push(self.read_is_ready(deadline)?);
            }
        }
        Ok(is_there)
    }
}

impl Store for TcpStoreClient {
    fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        check_limits([key], 0)?;
        let check = with_keys(Code::Check, &[key.to_owned()]);
        let get = with_key(Code::Get, key);
        // One backend of PyTorch closes the connection for a missing key, the other takes it for an empty value.
        self.call(Again::Yes, deadline, |connection| {
            connection.send(&check, deadline)?;
            if !connection.read_is_ready(deadline)? {
                return Ok(None);
            }
            connection.send(&get, deadline)?;
            connection.read_string(deadline).map(Some)
        })
    }

    fn get_all(&self, keys: &[String], deadline: Instant) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        check_limits(keys.iter().map(String::as_str), 0)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.call(Again::Yes, deadline, |connection| {
            let is_there = connection.which_are_there(keys, deadline)?;
            let found: Vec<String> =
                keys.iter().zip(&is_there).filter(|(_, there)| **there).map(|(key, _)| key.clone()).collect();
            if !found.is_empty() {
                connection.send(&with_keys(Code::MultiGet, &found), deadline)?;
            }
            let value = |there| match there {
                true => connection.read_string(deadline).map(Some),
                false => Ok(None),
            };
            is_there.into_iter().map(value).collect()
        })
    }

    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        check_limits([key], value.len())?;
        let mut command = with_key(Code::Set, key);
        put_string(&mut command, value);
        // There is no answer: the one to the question behind it tells that it was done.
        command.extend_from_slice(&with_keys(Code::Check, &[]));
        self.ask(Again::Yes, deadline, &command, Connection::read_byte).map(drop)
    }

    fn add(&self, key: &str, amount: i64, deadline: Instant) -> Result<i64, StoreError> {
        check_limits([key], 0)?;
        let mut command = with_key(Code::Add, key);
        put_number(&mut command, amount);
        self.ask(Again::No("add"), deadline, &command, Connection::read_number)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, StoreError> {
        check_limits([key], expected.len().max(desired.len()))?;
        let mut command = with_key(Code::CompareSet, key);
        put_string(&mut command, expected);
        put_string(&mut command, desired);
        self.ask(Again::Yes, deadline, &command, Connection::read_string)
    }

    fn append(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        check_limits([key], value.len())?;
        let mut command = with_key(Code::Append, key);
        put_string(&mut command, value);
        command.extend_from_slice(&with_keys(Code::Check, &[]));
        self.ask(Again::No("append"), deadline, &command, Connection::read_byte).map(drop)
    }

    fn wait(&self, keys: &[String], deadline: Instant) -> Result<bool, StoreError> {
        check_limits(keys.iter().map(String::as_str), 0)?;
        let command = with_keys(Code::Wait, keys);
        let Some(mut slot) = self.waits.try_lock_until(deadline) else { return Ok(false) };
        let result =
            self.work(&mut slot, Again::Yes, deadline, |connection| connection.wait(&command, deadline));
        match result {
            // The store was away until the deadline: that is what the caller has to know.
            Err(error) => Err(error),
            Ok(is_there) => Ok(is_there),
        }
    }

    fn check(&self, keys: &[String], deadline: Instant) -> Result<bool, StoreError> {
        check_limits(keys.iter().map(String::as_str), 0)?;
        let command = with_keys(Code::Check, keys);
        self.ask(Again::Yes, deadline, &command, Connection::read_is_ready)
    }

    fn delete(&self, key: &str, deadline: Instant) -> Result<bool, StoreError> {
        check_limits([key], 0)?;
        self.ask(Again::Yes, deadline, &with_key(Code::Delete, key), Connection::read_number)
            .map(|removed| removed > 0)
    }
}
