//! A peer as a process, for tests: reads one command per line, answers each with one line.
//!
//! Arguments: number of the peer, log file, master's address, then `group=`, `pool=`, `master-timeout-ms=`,
//! `dial-timeout-ms=`, `bind=`, `host=`, `ports=`, `call-timeout-ms=`, `name=`, `site=`, `strict=`, `outbound=`,
//! `formed=`, `alone=`, `level=` (the most processor features to use: `Base`, `Avx2`) as needed. An answer is
//! `ok key=value ...` or `err kind=... key=value ... -- text`; lines that start with `note` may come before.

mod buffer;
mod collective;
mod pair;
mod reduce;
mod segments;
mod train;
mod trap;

use buffer::Buffer;
use pccl::{
    Builder, Communicator, Error, Master, MasterConfig, Member, PeerId, SharedState, SyncStrategy, World,
};
use pccl_quant::Level;
use pccl_tests::{pattern, spec::StateSpec};
use std::{
    fmt::Write as _,
    io::{BufRead, Write},
    time::Duration,
};

/// The end of a command: the fields of an `ok`, or a whole `err` line.
pub(crate) type Reply = Result<String, String>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, listen, peer_timeout_ms, settings @ ..] = &args[..]
        && mode == "master"
    {
        return master(listen, peer_timeout_ms, settings);
    }
    let [index, log, master, settings @ ..] = &args[..] else {
        eprintln!("usage: pccl-test-peer INDEX LOG MASTER [KEY=VALUE]...");
        std::process::exit(2);
    };
    let index = index.parse().expect("the number of the peer");
    trap::install(log).expect("the log file can be written");
    let comm = settings
        .iter()
        .try_fold(Communicator::builder(master).first_ports(0, 0), |builder, setting| set(builder, setting))
        .and_then(|builder| builder.build().map_err(|error| error.to_string()))
        .expect("valid settings");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        log::debug!("command {line}");
        let reply = match run(&comm, index, command, rest) {
            Ok(fields) => format!("ok {fields}"),
            Err(line) => line,
        };
        say(&reply);
        if command == "quit" {
            break;
        }
    }
}

/// A master instead of a peer: says where it listens, and lives until standard input ends. One that ends by itself says
/// why.
fn master(listen: &str, peer_timeout_ms: &str, settings: &[String]) {
    let peer_timeout = Duration::from_millis(peer_timeout_ms.parse().expect("milliseconds"));
    let mut config =
        MasterConfig { listen: listen.to_owned(), insecure: true, peer_timeout, ..MasterConfig::default() };
    for setting in settings {
        match setting.split_once('=').expect("a setting is KEY=VALUE") {
            ("journal", path) => config.journal = Some(path.into()),
            ("accept-standbys", value) => config.accept_standbys = value == "true",
            ("standby-of", places) => config.standby_of = places.split(',').map(str::to_owned).collect(),
            ("masters", places) => config.masters = places.split(',').map(str::to_owned).collect(),
            ("admin", path) => config.admin = Some(path.into()),
            (key, _) => panic!("no setting {key}"),
        }
    }
    let master = Master::launch(config).expect("the master starts");
    say(&master.local_addr().to_string());
    let stop = master.stop_handle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().lines().map_while(Result::ok).last();
        stop.stop();
    });
    if let Err(error) = master.wait() {
        say(&error.to_string());
    }
}

fn set(builder: Builder, setting: &str) -> Result<Builder, String> {
    let (key, value) = setting.split_once('=').ok_or("a setting is KEY=VALUE")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(match key {
        "group" => builder.peer_group(number(value)? as u32),
        "pool" => builder.pool_size(number(value)? as u16),
        "master-timeout-ms" => builder.master_timeout(Duration::from_millis(number(value)?)),
        "dial-timeout-ms" => builder.dial_timeout(Duration::from_millis(number(value)?)),
        "bind" => builder.bind(value.parse().map_err(|error| format!("{value}: {error}"))?),
        "call-timeout-ms" => builder.call_timeout(Duration::from_millis(number(value)?)),
        "name" => builder.name(value),
        "site" => builder.site(value),
        "key" => builder.run_key(value),
        "run-name" => builder.run_name(value),
        "formed" => builder.formed_groups(number(value)? > 0),
        "alone" => builder.world_of_one(number(value)? > 0),
        "strict" => builder.strict_ports(number(value)? > 0),
        "shared" => builder.shared_memory(number(value)? > 0),
        "outbound" => builder.outbound_only(number(value)? > 0),
        "host" => builder.advertised_host(value),
        "ports" => {
            let (p2p, state) = value.split_once(',').ok_or("ports are P2P,STATE")?;
            builder.first_ports(number(p2p)? as u16, number(state)? as u16)
        }
        "level" => {
            let named = |level: &Level| format!("{level:?}") == value;
            Level::ALL.into_iter().find(named).ok_or_else(|| format!("no level {value}"))?.limit();
            builder
        }
        _ => return Err(format!("no setting {key}")),
    })
}

/// Writes a line, also when standard output is a pipe.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn run(comm: &Communicator, index: usize, command: &str, rest: &str) -> Reply {
    let words: Vec<&str> = rest.split(' ').filter(|word| !word.is_empty()).collect();
    let number = |at: usize| -> Result<u64, String> {
        words.get(at).and_then(|word| word.parse().ok()).ok_or_else(|| usage(&format!("{command} {rest}")))
    };
    match command {
        "connect" => comm
            .connect()
            .map(|()| format!("id={:032x} {}", comm.id().map_or(0, |id| id.0), world(&comm.world())))
            .map_err(|error| failed(&error)),
        "form" => form(comm, &words),
        "level" => Ok(format!("level={:?}", Level::detect())),
        "connected" => Ok(format!("connected={}", comm.is_connected())),
        "close" | "quit" => {
            comm.close();
            Ok(String::new())
        }
        "world" => Ok(world(&comm.world())),
        "topology" => comm.update_topology().map(|()| world(&comm.world())).map_err(|error| failed(&error)),
        "optimize" => comm
            .optimize_topology()
            .map(|done| {
                let slowest = done.slowest.map_or(0.0, |edge| edge.mbit_s);
                let (changed, proven, unmeasured) = (done.changed, done.proven, done.unmeasured_edges);
                let after = world(&comm.world());
                format!("changed={changed} proven={proven} unmeasured={unmeasured} slowest={slowest} {after}")
            })
            .map_err(|error| failed(&error)),
        "pending" => comm
            .are_peers_pending()
            .map(|pending| format!("pending={pending}"))
            .map_err(|error| failed(&error)),
        "wait" => {
            let timeout = (number(1)? > 0).then(|| Duration::from_millis(number(1).unwrap_or(0)));
            let progress = |have: usize, want: usize, missing: &str| {
                say(&format!("note have={have} want={want} -- {missing}"));
            };
            comm.wait_for_world_with(number(0)? as usize, timeout, progress)
                .map(|after| world(&after))
                .map_err(|error| failed(&error))
        }
        "limit" => {
            let limit = number(0)?;
            comm.set_call_timeout((limit > 0).then(|| Duration::from_millis(limit)));
            Ok(format!("name={}", comm.name()))
        }
        "reduce" => reduce::one(comm, index, &words, false),
        "reduce-announced" => reduce::one(comm, index, &words, true),
        "many" => reduce::many(comm, index, &words),
        "scope" => reduce::scope(comm, index, &words),
        "segments" => segments::run(comm, index, &words),
        "collective" => collective::run(comm, index, &words),
        "send" | "recv" => pair::run(comm, index, command, &words),
        "busy" => reduce::busy(comm, index, &words),
        "sync" => sync(comm, &words),
        "offer" => offer(comm, &words),
        "train" => train::run(comm, &words),
        "trap" => {
            let deed = if words.first() == Some(&"stop") { trap::Deed::Stop } else { trap::Deed::Kill };
            trap::arm(deed, number(1)? as usize, &words[2..].join(" "));
            Ok(String::new())
        }
        "dump" => comm
            .dump_flight(rest)
            .map(|file| format!("file={}", file.display()))
            .map_err(|error| failed(&error)),
        "untrap" => Ok(format!("left={}", trap::disarm().unwrap_or(0))),
        _ => Err(usage(command)),
    }
}

/// The answer to a command that makes no sense.
pub(crate) fn usage(text: &str) -> String {
    format!("err kind=Usage -- {text}")
}

/// A world as fields.
pub(crate) fn world(world: &World) -> String {
    let ring: Vec<_> = world.ring.iter().map(|peer| format!("{:032x}", peer.0)).collect();
    format!(
        "global={} group={} groups={} largest={} min={} rank={} ring={}",
        world.global_size,
        world.group_size,
        world.groups,
        world.largest_group,
        world.min_world_size,
        world.rank,
        ring.join(",")
    )
}

/// Name of an error's variant, and of a verdict's cause.
pub(crate) fn kind(error: &Error) -> String {
    let debug = format!("{error:?}");
    let variant = debug.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
    match error.verdict() {
        Some(verdict) => format!("{variant}:{:?}", verdict.cause),
        None => variant,
    }
}

/// The answer to a command that failed.
pub(crate) fn failed(error: &Error) -> String {
    failed_with(error, "")
}

/// The answer to a command that failed, with more fields.
pub(crate) fn failed_with(error: &Error, fields: &str) -> String {
    let code = if let Error::Kicked(reason) = error { format!("{:?}", reason.code) } else { "none".into() };
    let text = error.to_string().replace('\n', " ");
    format!("err kind={} remedy={:?} code={code} {fields} -- {text}", kind(error), error.remedy())
}

/// `form UUID LIMIT_MS MEMBER,MEMBER,...`: a member is a name, or `#` and an identity.
fn form(comm: &Communicator, words: &[&str]) -> Reply {
    let [uuid, limit_ms, members] = words[..] else { return Err(usage("form")) };
    let (uuid, limit_ms) = uuid.parse().ok().zip(limit_ms.parse().ok()).ok_or_else(|| usage("form"))?;
    let member = |text: &str| match text.strip_prefix('#') {
        Some(id) => {
            u128::from_str_radix(id, 16).map(|id| Member::from(PeerId(id))).map_err(|_| usage("form"))
        }
        None => Ok(Member::from(text)),
    };
    let members = members.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
    let formed = comm.form_group_within(uuid, &members, Duration::from_millis(limit_ms));
    formed.map(|formed| world(&formed)).map_err(|error| failed(&error))
}

/// `sync REVISION STRATEGY STATE,STATE,...`: answers with the hashes of all tensors afterwards.
fn state_specs(tensors: &str) -> Result<Vec<StateSpec>, String> {
    let specs = tensors.split(',').filter(|text| *text != "none").map(str::parse);
    specs.collect::<Result<_, String>>().map_err(|text| usage(&text))
}

/// Says at the next connect that this peer brings a state.
fn offer(comm: &Communicator, words: &[&str]) -> Reply {
    let [revision, tensors] = words[..] else { return Err(usage("offer")) };
    let specs = state_specs(tensors)?;
    let contents: Vec<_> =
        specs.iter().map(|spec| [vec![0; skipped(spec)], spec.content()].concat()).collect();
    let mut buffers: Vec<_> =
        specs.iter().zip(&contents).map(|(spec, content)| Buffer::new(spec.data_type, content)).collect();
    let mut state = SharedState::new(revision.parse().map_err(|_| usage("offer"))?);
    for (spec, buffer) in specs.iter().zip(&mut buffers) {
        buffer.add_to(&mut state, spec).map_err(|error| failed(&error))?;
    }
    comm.offer_resume(&state);
    Ok(String::new())
}

fn sync(comm: &Communicator, words: &[&str]) -> Reply {
    let [revision, strategy, tensors] = words[..] else { return Err(usage("sync")) };
    let revision = revision.parse().map_err(|_| usage("sync"))?;
    let strategy = match strategy {
        "popular" => SyncStrategy::EnforcePopular,
        "receive" => SyncStrategy::ReceiveOnly,
        "send" => SyncStrategy::SendOnly,
        _ => return Err(usage("sync")),
    };
    let specs = state_specs(tensors)?;
    let contents: Vec<_> =
        specs.iter().map(|spec| [vec![0; skipped(spec)], spec.content()].concat()).collect();
    let mut buffers: Vec<_> =
        specs.iter().zip(&contents).map(|(spec, content)| Buffer::new(spec.data_type, content)).collect();
    let (result, after) = {
        let mut state = SharedState::new(revision);
        for (spec, buffer) in specs.iter().zip(&mut buffers) {
            buffer.add_to(&mut state, spec).map_err(|error| failed(&error))?;
        }
        let result = comm.sync_shared_state(&mut state, strategy);
        (result, state.revision())
    };
    let mut digests = String::new();
    for (spec, buffer) in specs.iter().zip(&buffers) {
        let _ = write!(digests, "{}{}", ["", ","][usize::from(!digests.is_empty())], {
            pattern::digest(&buffer.bytes()[skipped(spec)..])
        });
    }
    let kept = specs
        .iter()
        .zip(&buffers)
        .all(|(spec, buffer)| buffer.bytes()[..skipped(spec)].iter().all(|&b| b == 0));
    let unchanged = buffers.iter().zip(&contents).all(|(buffer, content)| buffer.bytes() == content);
    let fields = format!("digests={digests} state={after} kept={kept} restored={unchanged}");
    match result {
        Ok(info) => {
            Ok(format!("revision={} tx={} rx={} {fields}", info.revision, info.tx_bytes, info.rx_bytes))
        }
        Err(error) => Err(failed_with(&error, &fields)),
    }
}

fn skipped(spec: &StateSpec) -> usize {
    spec.skip * spec.data_type.size_bytes()
}
