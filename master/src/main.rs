//! The `pccl-master` program: runs one master until it is told to end by SIGINT or SIGTERM.

mod logging;
#[allow(unsafe_code)]
mod process;

use clap::Parser;
use pccl_master::{Master, MasterConfig};
use pccl_protocol::limits;
use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

/// Leads a run of PCCL peers: decides who is in it and what happens next. It never sees a tensor.
///
/// Ends with status 0 on SIGINT or SIGTERM, after it has told its peers. The log goes to stderr; its level is set by
/// PCCL_LOG_LEVEL (TRACE, DEBUG, INFO, WARN, ERR, FATAL or NONE) or, in more detail, by RUST_LOG.
#[derive(Debug, Parser)]
#[command(name = "pccl-master", version)]
struct Arguments {
    /// Address to listen on. Port 0 takes a free one; `[::]:PORT` means all addresses of both families.
    #[arg(long, value_name = "HOST:PORT", default_value_t = format!("0.0.0.0:{}", limits::DEFAULT_MASTER_PORT))]
    listen: String,

    /// Drop a peer that gave no sign of life for this long: `10s`, `500ms`, `2m`, or plain seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s")]
    peer_timeout: Duration,

    /// Collectives and syncs fail with "too few peers" while the run has fewer peers than this.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=limits::MAX_PEERS as i64), default_value_t = 1)]
    min_world_size: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            // Not by the log, whose level may be NONE.
            let _ = writeln!(io::stderr(), "pccl-master: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    process::raise_descriptor_limit();
    // Before any thread exists, so that every thread inherits the mask and only the waiting one takes the signals.
    let signals = process::EndSignals::block().map_err(|error| format!("cannot block signals: {error}"))?;
    let master = Master::launch(MasterConfig {
        listen: arguments.listen,
        peer_timeout: arguments.peer_timeout,
        min_world_size: arguments.min_world_size,
        ..MasterConfig::default()
    })
    .map_err(|error| error.to_string())?;
    announce(&format!("pccl-master listening on {}\n", master.local_addr()));
    let stop_handle = master.stop_handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || match signals.wait() {
            Ok(name) => {
                log::info!("{name}: stopping");
                stop_handle.stop();
            }
            Err(error) => log::error!("cannot wait for signals, only SIGKILL ends this process: {error}"),
        })
        .map_err(|error| format!("cannot start the thread that waits for signals: {error}"))?;
    master.wait().map_err(|error| error.to_string())
}

/// Tells on stdout that clients can connect. A stdout that nobody reads is no reason not to run.
fn announce(line: &str) {
    let mut stdout = io::stdout();
    if let Err(error) = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
        log::warn!("cannot write to stdout: {error}");
    }
}

/// Reads a time: a number with `ms`, `s` or `m` behind it, or plain seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let number_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit_seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err("write a number and a unit (ms, s or m), for instance 10s".into()),
    };
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, for instance 10s".to_owned())?;
    match Duration::try_from_secs_f64(number * unit_seconds) {
        Ok(time) if time >= Duration::from_millis(10) && time <= Duration::from_secs(86_400) => Ok(time),
        _ => Err("the time must lie between 10ms and one day".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("2.5"), Ok(Duration::from_millis(2500)));
        assert_eq!(parse_time("1 m"), Ok(Duration::from_secs(60)));
        for bad in ["", "s", "10 parsecs", "-1s", "0", "1ms", "1.2.3s", "1e9s", "99999999999999999999999s"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["pccl-master"]);
        let defaults = MasterConfig::default();
        assert_eq!(arguments.listen, defaults.listen);
        assert_eq!(arguments.peer_timeout, defaults.peer_timeout);
        assert_eq!(arguments.min_world_size, defaults.min_world_size);
    }
}
