//! A newcomer with a large state comes to peers that train: what it costs their steps, and the one in which it enters.

use crate::{
    Args, Result,
    fleet::start,
    median,
    wan::{HOSTS, SOURCES},
};
use pccl_testkit::{lab::Lab, process::Partner};

const STATE_MIB: usize = 512;
/// Steps that are measured before a newcomer comes.
const BEFORE: usize = 3;

/// A step of one peer. For a newcomer, the numbers of the boundary are those of the way through its first sync.
#[derive(Debug, Clone, Copy)]
struct Step {
    world: usize,
    seconds: f64,
    boundary: f64,
    rx_bytes: u64,
    wire_bytes: u64,
    peak_kib: u64,
}

impl Step {
    fn of(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let &[world, seconds, boundary, rx_bytes, wire_bytes, peak_kib] = words.as_slice() else {
            return Err(format!("a peer says {line:?}").into());
        };
        Ok(Self {
            world: world.parse()?,
            seconds: seconds.parse()?,
            boundary: boundary.parse()?,
            rx_bytes: rx_bytes.parse()?,
            wire_bytes: wire_bytes.parse()?,
            peak_kib: peak_kib.parse()?,
        })
    }

    /// The next step of all peers: that of the slowest.
    fn next(peers: &mut [Partner]) -> Result<Self> {
        let steps = peers.iter_mut().map(|peer| Self::of(&peer.listen()?)).collect::<Result<Vec<_>>>()?;
        let slowest = steps.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds)).copied();
        let slowest = slowest.ok_or("no peers")?;
        let peak_kib = steps.iter().map(|step| step.peak_kib).max().unwrap_or(0);
        let boundary = steps.iter().map(|step| step.boundary).fold(0.0, f64::max);
        Ok(Self { peak_kib, boundary, ..slowest })
    }
}

/// The cost of one newcomer.
struct Cost {
    before: Vec<Step>,
    during: Vec<Step>,
    entry: Step,
    newcomer: Step,
}

/// Measures one newcomer after the other.
pub(crate) fn run(lab: &Lab, args: &Args) -> Result<()> {
    let mut master = start(Some(lab), HOSTS, &["--serve".to_owned(), format!("{}:0", Lab::address(HOSTS))])?;
    let mut words = vec!["--trainer".to_owned(), master.listen()?, "--peers".to_owned()];
    words.extend([SOURCES.to_string(), "--mib".to_owned(), STATE_MIB.to_string()]);
    words.extend(["--memory-mib".to_owned(), args.memory_mib.to_string()]);
    let peers = (0..SOURCES).map(|host| start(Some(lab), host, &words));
    let mut peers = peers.collect::<Result<Vec<Partner>>>()?;
    words.push("--joins".to_owned());
    // Connections are new in the first step.
    Step::next(&mut peers)?;
    let mut costs = Vec::new();
    for _ in 0..args.rounds {
        costs.push(join(lab, &mut peers, &words)?);
        // The newcomer has gone again: the step in which it went is none of those that count.
        while Step::next(&mut peers)?.world > SOURCES {}
    }
    tell(&costs);
    Ok(())
}

fn join(lab: &Lab, peers: &mut [Partner], words: &[String]) -> Result<Cost> {
    let before = (0..BEFORE).map(|_| Step::next(peers)).collect::<Result<Vec<_>>>()?;
    let mut newcomer = start(Some(lab), SOURCES, words)?;
    let mut during = Vec::new();
    let entry = loop {
        let step = Step::next(peers)?;
        if step.world > SOURCES {
            break step;
        }
        during.push(step);
    };
    let newcomer = Step::of(&newcomer.listen()?)?;
    Ok(Cost { before, during, entry, newcomer })
}

fn tell(costs: &[Cost]) {
    let seconds = |steps: &[Step]| median(steps.iter().map(|step| step.seconds));
    let all = |of: fn(&Cost) -> &Vec<Step>| costs.iter().flat_map(of).copied().collect::<Vec<Step>>();
    let (before, during) = (all(|cost| &cost.before), all(|cost| &cost.during));
    let usual = seconds(&before);
    let slowest = during.iter().map(|step| step.seconds).fold(0.0, f64::max);
    println!(
        "join, {STATE_MIB} MiB, {SOURCES} peers train: steps of {usual:.3} s before, {:.3} s during the fetch \
         ({:+.1} %; the slowest of {} {slowest:.3} s, {:+.1} %)",
        seconds(&during),
        (seconds(&during) / usual - 1.0) * 100.0,
        during.len(),
        (slowest / usual - 1.0) * 100.0,
    );
    let boundary = median(before.iter().chain(&during).map(|step| step.boundary));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "  it enters: {:.3} s at the boundary ({boundary:.3} s without a newcomer), the whole step {:+.3} s; \
         {:.3} s in its own sync; it moves {:.2} MiB, {:.1} KiB arrive on its wire and that of the slowest",
        median(costs.iter().map(|cost| cost.entry.boundary)),
        median(costs.iter().map(|cost| cost.entry.seconds)) - usual,
        median(costs.iter().map(|cost| cost.newcomer.boundary)),
        median(costs.iter().map(|cost| mib(cost.newcomer.rx_bytes))),
        median(costs.iter().map(|cost| mib(cost.newcomer.wire_bytes + cost.entry.wire_bytes) * 1024.0)),
    );
    let peak = |of: fn(&Cost) -> u64| costs.iter().map(of).max().unwrap_or(0) >> 10;
    println!(
        "  peak beside the tensors: {} MiB at those who train (8 MiB of it for the average), {} MiB at the newcomer",
        peak(|cost| cost.entry.peak_kib),
        peak(|cost| cost.newcomer.peak_kib)
    );
}
