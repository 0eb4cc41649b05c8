//! Carries out commands: the part of the server without sockets.

use super::{journal::Change, waits::Waits};
use crate::{
    data::Data,
    wire::{
        Code, Fields, MAGIC, MAX_COMMAND_BYTES, NOT_READY, READY, STOP_WAITING, WAIT_CANCELLED, put_number,
        put_string,
    },
};
use std::collections::HashMap;

/// Keys, values and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Engine {
    pub(super) data: Data,
    pub(super) waits: Waits,
    /// Connections at a barrier that is not full.
    barriers: HashMap<Vec<u8>, Vec<u64>>,
    at_barrier: HashMap<u64, Vec<u8>>,
    /// Connections whose wait is over; each is to be told so.
    pub(super) woken: Vec<u64>,
    /// Changes that are to be kept in the file.
    pub(super) changes: Vec<Change>,
    pub(super) keeps_changes: bool,
}

impl Engine {
    pub(super) fn new(data: Data, keeps_changes: bool) -> Self {
        Self { data, keeps_changes, ..Self::default() }
    }

    fn keep(&mut self, change: impl FnOnce() -> Change) {
        if self.keeps_changes {
            self.changes.push(change());
        }
    }

    fn written(&mut self, key: &[u8]) {
        self.woken.extend(self.waits.written(key));
        if self.keeps_changes
            && let Some(value) = self.data.get(key)
        {
            self.changes.push(Change::Set(key.to_vec(), value.to_vec()));
        }
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, conn: u64) {
        self.waits.end(conn);
        if let Some(key) = self.at_barrier.remove(&conn)
            && let Some(conns) = self.barriers.get_mut(&key)
        {
            conns.retain(|other| *other != conn);
            if conns.is_empty() {
                self.barriers.remove(&key);
            }
        }
    }

    /// Whether a connection is waiting for anything.
    pub(super) fn is_waiting(&self, conn: u64) -> bool {
        self.waits.is_waiting(conn) || self.at_barrier.contains_key(&conn)
    }

    /// Carries out one command of a connection and appends the answer. Fails, in words, if the connection is to be
    /// closed.
    pub(super) fn carry_out(
        &mut self,
        conn: u64,
        code: Code,
        command: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut fields = Fields::new(command);
        match code {
            Code::Validate => {
                let magic = fields.word();
                if magic != MAGIC {
                    return Err(format!("the magic number is {magic:#x}"));
                }
            }
            Code::Ping => out.extend_from_slice(&fields.word().to_le_bytes()),
            Code::Set | Code::CompareSet | Code::Add | Code::Append | Code::MultiSet | Code::Delete => {
                self.change(code, &mut fields, out)?;
            }
            Code::Get => put_string(out, self.data.get(fields.string()).unwrap_or_default()),
            Code::MultiGet => {
                let keys = fields.strings();
                fits(keys.iter().map(|key| self.data.get(key).map_or(0, <[u8]>::len)))?;
                for key in keys {
                    put_string(out, self.data.get(key).unwrap_or_default());
                }
            }
            Code::Check => {
                let all = fields.strings().iter().all(|key| self.data.has(key));
                out.push(if all { READY } else { NOT_READY });
            }
            Code::NumKeys => put_number(out, self.data.len() as i64),
            Code::ListKeys => {
                fits(self.data.keys().map(<[u8]>::len))?;
                put_number(out, self.data.len() as i64);
                self.data.keys().for_each(|key| put_string(out, key));
            }
            Code::Wait | Code::CancelWait | Code::Barrier => self.wait(conn, code, &mut fields, out)?,
            Code::QueuePush | Code::QueuePop | Code::QueueLen => self.queue(code, &mut fields, out)?,
        }
        Ok(())
    }

    fn change(&mut self, code: Code, fields: &mut Fields<'_>, out: &mut Vec<u8>) -> Result<(), String> {
        let refused = |refusal: crate::data::Refusal| refusal.to_string();
        if code == Code::MultiSet {
            for _ in 0..fields.number() {
                let (key, value) = (fields.string(), fields.string());
                self.data.set(key, value).map_err(refused)?;
                self.written(key);
            }
            return Ok(());
        }
        let key = fields.string();
        match code {
            Code::CompareSet => {
                let (expected, desired) = (fields.string(), fields.string());
                let (answer, is_set) = self.data.compare_set(key, expected, desired).map_err(refused)?;
                put_string(out, &answer);
                if !is_set {
                    return Ok(());
                }
            }
            Code::Add => put_number(out, self.data.add(key, fields.number()).map_err(refused)?),
            Code::Append => self.data.append(key, fields.string()).map_err(refused)?,
            Code::Delete => {
                let removed = self.data.delete(key);
                put_number(out, i64::from(removed));
                if removed {
                    self.keep(|| Change::Delete(key.to_vec()));
                }
                return Ok(());
            }
            _ => self.data.set(key, fields.string()).map_err(refused)?,
        }
        self.written(key);
        Ok(())
    }

    fn wait(
        &mut self,
        conn: u64,
        code: Code,
        fields: &mut Fields<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if code == Code::CancelWait {
            self.forget(conn);
            out.push(WAIT_CANCELLED);
            return Ok(());
        }
        if self.is_waiting(conn) {
            return Err("it waits for two things at once".into());
        }
        if code == Code::Wait {
            let missing: Vec<Vec<u8>> =
                fields.strings().into_iter().filter(|key| !self.data.has(key)).map(<[u8]>::to_vec).collect();
            if missing.is_empty() {
                out.push(STOP_WAITING);
            } else {
                self.waits.begin(conn, missing);
            }
            return Ok(());
        }
        let (key, world) = (fields.string(), fields.number());
        let count = self.data.arrive(key).map_err(|refusal| refusal.to_string())?;
        self.keep(|| Change::Arrivals(key.to_vec(), count));
        if count < world {
            self.barriers.entry(key.to_vec()).or_default().push(conn);
            self.at_barrier.insert(conn, key.to_vec());
            return Ok(());
        }
        out.push(STOP_WAITING);
        for other in self.barriers.remove(key).unwrap_or_default() {
            self.at_barrier.remove(&other);
            self.woken.push(other);
        }
        Ok(())
    }

    fn queue(&mut self, code: Code, fields: &mut Fields<'_>, out: &mut Vec<u8>) -> Result<(), String> {
        let key = fields.string();
        match code {
            Code::QueuePush => {
                let value = fields.string();
                self.data.push(key, value).map_err(|refusal| refusal.to_string())?;
                self.keep(|| Change::Push(key.to_vec(), value.to_vec()));
                let woken = self.waits.written(key);
                self.woken.extend(woken);
            }
            Code::QueuePop => {
                put_number(out, self.data.queue_len(key) as i64);
                if let Some(value) = self.data.pop(key) {
                    put_string(out, &value);
                    self.keep(|| Change::Pop(key.to_vec()));
                }
            }
            _ => put_number(out, self.data.queue_len(key) as i64),
        }
        Ok(())
    }
}

/// Refuses an answer that would take too much memory.
fn fits(lengths: impl Iterator<Item = usize>) -> Result<(), String> {
    let bytes: usize = lengths.map(|length| length + 8).sum();
    if bytes > MAX_COMMAND_BYTES {
        return Err(format!("its answer would have {bytes} bytes, at most {MAX_COMMAND_BYTES} are allowed"));
    }
    Ok(())
}
