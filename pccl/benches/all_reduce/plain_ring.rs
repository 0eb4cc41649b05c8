//! `ring_limit`: what plain TCP does with the bytes of a ring all-reduce.
//!
//! Every process sends `2 (n - 1) / n` of the size to the next one and receives as much from the previous one, over one
//! connection each with the settings of the library's own, by blocking calls of one thread per direction, from and into
//! memory of the size of the tensor. No arithmetic, no headers, nobody waits for what has to be received first.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};
use tinysockets::{conn::Conn, link::tune_data_socket};

/// As large as a frame of the library.
const PIECE_BYTES: usize = 512 << 10;

/// The connections of one process.
#[derive(Debug)]
pub(crate) struct PlainRing {
    to_next: TcpStream,
    from_previous: TcpStream,
}

/// Options belong to the socket, so they are set through a copy of its descriptor; what is measured stays plain.
fn tune(stream: &TcpStream) -> io::Result<()> {
    tune_data_socket(&Conn::from(stream.try_clone()?), Duration::ZERO);
    Ok(())
}

impl PlainRing {
    /// Connects to the next process and takes the connection of the previous one.
    pub(crate) fn connect(listener: &TcpListener, next: &str) -> io::Result<Self> {
        let to_next = TcpStream::connect(next)?;
        let (from_previous, _) = listener.accept()?;
        tune(&to_next)?;
        tune(&from_previous)?;
        Ok(Self { to_next, from_previous })
    }

    /// Moves the bytes of one all-reduce of `source` among `peers`.
    pub(crate) fn run(&mut self, peers: usize, source: &[u8], target: &mut [u8]) -> io::Result<()> {
        let volume = source.len() * 2 * (peers - 1) / peers;
        let (to_next, from_previous) = (&mut self.to_next, &mut self.from_previous);
        thread::scope(|scope| {
            let sender = scope.spawn(move || {
                pieces(volume, source.len()).try_for_each(|piece| to_next.write_all(&source[piece]))
            });
            pieces(volume, target.len())
                .try_for_each(|piece| from_previous.read_exact(&mut target[piece]))?;
            sender.join().map_err(|_| io::Error::other("the sending thread panicked"))?
        })
    }
}

/// The pieces of `volume` bytes that go round and round in memory of `len` bytes.
fn pieces(volume: usize, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut left = volume;
    let mut at = 0;
    std::iter::from_fn(move || {
        let piece = PIECE_BYTES.min(left).min(len - at);
        if piece == 0 {
            return None;
        }
        let range = at..at + piece;
        left -= piece;
        at = (at + piece) % len;
        Some(range)
    })
}
