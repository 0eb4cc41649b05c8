//! The processes of a measurement, with the master in this one.

use crate::process::cpu_seconds;
use pccl::{Master, MasterConfig};
use std::{
    error::Error,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// What a command cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// From the first to the last peer's end.
    pub(crate) seconds: f64,
    /// Of all peers and the master.
    pub(crate) cpu_seconds: f64,
}

#[derive(Debug)]
struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Fleet {
    peers: Vec<Peer>,
    master: Master,
}

impl Fleet {
    /// Starts the processes and connects them.
    pub(crate) fn start(peers: usize, checksums: bool) -> Result<Self, Box<dyn Error>> {
        let master =
            Master::launch(MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() })?;
        let started = (0..peers)
            .map(|index| Peer::start(index, peers, checksums, &master.local_addr().to_string()))
            .collect::<io::Result<Vec<_>>>()?;
        let mut fleet = Self { peers: started, master };
        let ports = fleet
            .peers
            .iter_mut()
            .map(|peer| Ok(peer.listen()?.trim_start_matches("port ").to_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        for (index, peer) in fleet.peers.iter_mut().enumerate() {
            peer.tell(&ports[(index + 1) % ports.len()])?;
        }
        for peer in &mut fleet.peers {
            let line = peer.listen()?;
            if line != "ready" {
                return Err(format!("a peer said {line:?}").into());
            }
        }
        Ok(fleet)
    }

    /// Lets all peers do the same and waits for all.
    pub(crate) fn measure(&mut self, command: &str) -> io::Result<Measured> {
        let own_cpu = cpu_seconds()?;
        for peer in &mut self.peers {
            peer.tell(command)?;
        }
        let mut measured = Measured { seconds: 0.0, cpu_seconds: 0.0 };
        for peer in &mut self.peers {
            let line = peer.listen()?;
            let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let &[seconds, cpu] = numbers.as_slice() else {
                return Err(io::Error::other(format!("a peer answered {line:?} to {command:?}")));
            };
            measured.seconds = measured.seconds.max(seconds);
            measured.cpu_seconds += cpu;
        }
        measured.cpu_seconds += cpu_seconds()? - own_cpu;
        Ok(measured)
    }

    /// Ends the processes.
    pub(crate) fn end(self) -> io::Result<()> {
        let Self { peers, master } = self;
        for Peer { mut process, input, .. } in peers {
            drop(input);
            process.wait()?;
        }
        drop(master);
        Ok(())
    }
}

impl Peer {
    fn start(index: usize, peers: usize, checksums: bool, master: &str) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--child", &index.to_string(), "--peers", &peers.to_string(), "--master", master]);
        if checksums {
            command.arg("--checksums");
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or_else(|| io::Error::other("a peer without pipes"))?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")?;
        self.input.flush()
    }

    fn listen(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a peer ended; see its messages above"));
        }
        Ok(line.trim_end().to_owned())
    }
}
