//! What two processes of this machine reach with one plain connection: one sends its memory, the other one receives
//! into memory that it has, and reads the sum of what came.

use crate::{Args, Result, child, fleet::Process};
use std::{
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// As much as one call takes.
const STEP_BYTES: usize = 1 << 20;

/// The sending end: once per line of standard input.
pub(crate) fn send(target: &str, mib: usize) -> Result<()> {
    let content: Vec<u8> = child::content(mib).iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    child::say("connected")?;
    for line in std::io::stdin().lines() {
        line?;
        content.chunks(STEP_BYTES).try_for_each(|step| stream.write_all(step))?;
    }
    Ok(())
}

struct Plain {
    sender: Process,
    stream: TcpStream,
    memory: Vec<u8>,
}

fn connect(args: &Args) -> Result<Plain> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = Process::start(args, &format!("plain/{}", listener.local_addr()?))?;
    let stream = listener.accept()?.0;
    sender.hear()?;
    // Touched, as the tensors of a receiver are.
    Ok(Plain { sender, stream, memory: vec![1; args.mib * STEP_BYTES] })
}

/// Moves the whole state once.
pub(crate) fn measure(args: &Args) -> Result<Duration> {
    static PLAIN: OnceLock<std::sync::Mutex<Option<Plain>>> = OnceLock::new();
    let slot = PLAIN.get_or_init(Default::default);
    let mut slot = slot.lock().map_err(|_| "a measurement panicked")?;
    let plain = match &mut *slot {
        Some(plain) => plain,
        None => slot.insert(connect(args)?),
    };
    let began = Instant::now();
    plain.sender.say("send")?;
    for step in plain.memory.chunks_mut(STEP_BYTES) {
        plain.stream.read_exact(step)?;
        let (words, _) = step.as_chunks::<8>();
        black_box(words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    }
    Ok(began.elapsed())
}
