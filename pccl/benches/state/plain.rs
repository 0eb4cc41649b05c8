//! The rate that processes of this machine reach with plain connections: each sender sends its memory over one, and a
//! receiver puts all of it into memory that it has, and reads the sum of what came.

use crate::{Args, Result, child, fleet::start};
use pccl_testkit::process::Partner;
use std::{
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Instant,
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

/// The receiving end: a thread for each of the senders, which give as much each as the sources of a sync would.
pub(crate) struct Plain {
    senders: Vec<(Partner, TcpStream)>,
    memory: Vec<u8>,
}

impl Plain {
    pub(crate) fn connect(args: &Args, senders: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let mib = args.mib.div_ceil(senders);
        let words = ["--plain-to", &address, "--mib", &mib.to_string()].map(str::to_owned);
        let connect = || {
            let mut sender = start(None, 0, &words)?;
            let stream = listener.accept()?.0;
            sender.listen()?;
            Ok((sender, stream))
        };
        let senders = (0..senders).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        // Touched, as the tensors of a receiver are.
        let memory = vec![1; senders.len() * mib * STEP_BYTES];
        Ok(Self { senders, memory })
    }

    /// Moves the whole state once; returns the seconds.
    pub(crate) fn measure(&mut self) -> Result<f64> {
        let share = self.memory.len() / self.senders.len();
        let began = Instant::now();
        for (sender, _) in &mut self.senders {
            sender.tell("send")?;
        }
        std::thread::scope(|scope| {
            let parts = self.senders.iter().zip(self.memory.chunks_mut(share));
            let threads: Vec<_> =
                parts.map(|((_, stream), part)| scope.spawn(move || receive(stream, part))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a receiver panicked")))
            })
        })?;
        Ok(began.elapsed().as_secs_f64())
    }
}

fn receive(mut stream: &TcpStream, memory: &mut [u8]) -> std::io::Result<()> {
    for step in memory.chunks_mut(STEP_BYTES) {
        stream.read_exact(step)?;
        let (words, _) = step.as_chunks::<8>();
        black_box(words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    }
    Ok(())
}
