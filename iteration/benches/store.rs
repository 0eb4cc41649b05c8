//! Costs of the store server: idle connections, a large run that advances, and calls per second beside PyTorch's
//! server.
//!
//! ```sh
//! cargo bench -p pccl-iteration --bench store                                      # the server of this crate
//! PCCL_TORCH_PYTHON=python3 cargo bench -p pccl-iteration --bench store -- torch   # in turns with PyTorch's
//! ```
//!
//! `PCCL_BENCH_IDLE` and `PCCL_BENCH_RANKS` set how many connections and members there are (10000 and 1000). Servers
//! are processes of their own, so that their limit of open files and their costs are theirs alone. Linux only.

use pccl_iteration::{GlobalIteration, IterationConfig, ServerConfig, Store, StoreServer, TcpStoreClient};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Set in the process of a server.
const SERVER: &str = "PCCL_BENCH_SERVER";
const ITERATIONS: u64 = 10;
const MEASURE: Duration = Duration::from_secs(3);
/// Turns of the servers, and how long each does one thing. Many short ones: a turn in which the machine was busy with
/// something else then shows.
const TURNS: usize = 9;
const TURN: Duration = Duration::from_secs(1);
/// Ticks of a processor clock in `/proc`, on all Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("it says where");
        Self { process, address: format!("127.0.0.1:{}", line.trim()) }
    }

    fn ours() -> Self {
        Self::start(Command::new(std::env::current_exe().expect("a path")).env(SERVER, "1"))
    }

    fn torch(backend: &str) -> Option<Self> {
        let python = std::env::var("PCCL_TORCH_PYTHON").ok()?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rounds/torch_server.py");
        Some(Self::start(Command::new(python).args([script, backend])))
    }

    /// Processor time so far, in seconds.
    fn cpu_s(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("Linux");
        let fields = text.rsplit(')').next().expect("a stat line");
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
        ticks as f64 / TICKS_PER_SECOND
    }

    /// Memory in MB: now, and at most so far.
    fn memory_mb(&self) -> (f64, f64) {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("Linux");
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
            line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).expect("kB") * 1024.0 / 1e6
        };
        (of("VmRSS"), of("VmHWM"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn serve() {
    let config = ServerConfig { listen: "127.0.0.1:0".into(), ..ServerConfig::default() };
    let server = StoreServer::launch(config).expect("it listens");
    println!("{}", server.local_addr().port());
    // Until the other end is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Connections that have introduced themselves and say nothing more.
fn idle(address: &str, count: usize) -> Vec<TcpStream> {
    use std::io::Write;
    let hello = [0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 0, 0, 0];
    let open = |_| {
        let mut stream = TcpStream::connect(address).expect("a connection; see ulimit -n");
        stream.write_all(&hello).expect("it is taken");
        stream.read_exact(&mut [0; 4]).expect("it is answered");
        stream
    };
    (0..count).map(open).collect()
}

fn many() {
    let (connections, ranks) = (number("PCCL_BENCH_IDLE", 10_000), number("PCCL_BENCH_RANKS", 1000));
    let server = Server::ours();
    let idle = idle(&server.address, connections);
    println!("{connections} idle connections: {:.0} MB", server.memory_mb().0);
    let before = server.cpu_s();
    thread::sleep(MEASURE);
    println!("  idle for {MEASURE:?}: {:.3} cores", (server.cpu_s() - before) / MEASURE.as_secs_f64());
    let config = IterationConfig { world_size: ranks, mirror: false, ..IterationConfig::default() };
    let began = (Instant::now(), server.cpu_s());
    thread::scope(|scope| {
        for rank in 0..ranks {
            let (config, address) = (config.clone(), &server.address);
            let body = move || {
                let store = Arc::new(TcpStoreClient::connect(address, soon()).expect("the store"));
                let member = GlobalIteration::join(store, &rank.to_string(), b"", config).expect("a run");
                while member.decision().iteration < ITERATIONS {
                    let decision = member.advance(&[0; 16]).expect("a decision");
                    assert_eq!(decision.entries.len(), ranks);
                }
                drop(member);
            };
            thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, body).expect("a thread");
        }
    });
    let (wall, cpu) = (began.0.elapsed().as_secs_f64(), server.cpu_s() - began.1);
    let (now, most) = server.memory_mb();
    println!(
        "{ranks} ranks join and advance {ITERATIONS} times: {wall:.1} s, {:.2} cores, \
         {now:.0} MB, at most {most:.0} MB",
        cpu / wall
    );
    drop(idle);
}

/// Times that something can be done in a second.
fn rate(mut once: impl FnMut(u64)) -> f64 {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < TURN {
        (0..100).for_each(|i| once(count + i));
        count += 100;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

fn calls(server: &Server) -> [f64; 2] {
    let client = TcpStoreClient::connect(&server.address, soon()).expect("the store");
    let value = [7; 64];
    let pairs = rate(|i| {
        let key = format!("key{}", i % 1000);
        client.set(&key, &value, soon()).expect("set");
        client.get(&key, soon()).expect("get");
    });
    client.delete("register", soon()).expect("delete");
    let mut old = Vec::new();
    let swaps = rate(|i| {
        let new = i.to_le_bytes().to_vec();
        assert_eq!(client.compare_set("register", &old, &new, soon()).expect("compare_set"), new);
        old = new;
    });
    [pairs, swaps]
}

fn in_turns() {
    let servers: Vec<(&str, Server)> = [("ours", Some(Server::ours()))]
        .into_iter()
        .chain(["libuv", "legacy"].map(|backend| (backend, Server::torch(backend))))
        .filter_map(|(name, server)| Some((name, server?)))
        .collect();
    // The processor time that it took to start is no cost of calls.
    let began: Vec<f64> = servers.iter().map(|(_, server)| server.cpu_s()).collect();
    let mut rates = vec![[Vec::new(), Vec::new()]; servers.len()];
    for _ in 0..TURNS {
        for ((_, server), rates) in servers.iter().zip(&mut rates) {
            calls(server).into_iter().zip(rates).for_each(|(rate, rates)| rates.push(rate));
        }
    }
    println!("calls per second of one client in {TURNS} turns");
    for (((name, server), mut rates), began) in servers.iter().zip(rates).zip(began) {
        rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
        let [pairs, swaps] =
            rates.map(|rates| format!("median {:.0}, best {:.0}", rates[TURNS / 2], rates[TURNS - 1]));
        let cpu = server.cpu_s() - began;
        println!("{name}: set+get {pairs}; compare_set {swaps}; {cpu:.1} s of processor in all");
    }
}

fn main() {
    if std::env::var_os(SERVER).is_some() {
        return serve();
    }
    if std::env::args().any(|argument| argument == "torch") { in_turns() } else { many() }
}
