//! The relay of a master: the last resort for peers that nobody can dial. It has a port and threads of its own, so that
//! it never delays the master, and sees of what it relays what any wire sees.

use pccl_protocol::{PeerId, RelayOffer, RelayedPair, RunId, StatusRelay, limits};
use pccl_settings::Text;
use std::{io, net::IpAddr, sync::Arc, time::Duration};
use tinysockets::{
    key::RunKeys,
    listener::Listener,
    relay::{Gauge, Relay, RelayLimits},
    ticket::Lock,
};

/// How long one end waits for the other one: as long as the slower of two dials takes, and some more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Settings of the relay of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayConfig {
    /// The bound for all relayed bytes together, in Mbit/s (10^6 bits). At least 1.
    pub mbit_per_s: u32,
    /// Port to listen on, at the same addresses as the master. 0 takes a free one. Default: 48147.
    pub port: u16,
}

impl RelayConfig {
    /// With this bound in Mbit/s, on the default port.
    #[must_use]
    pub const fn new(mbit_per_s: u32) -> Self {
        Self { mbit_per_s, port: limits::DEFAULT_RELAY_PORT }
    }
}

impl Text for RelayConfig {
    const FORM: &'static str = "MBIT_PER_S[:PORT]";

    fn from_text(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?}: write a rate of at least 1 in Mbit/s, and behind a colon a port if it is not the usual one"
            )
        };
        let (rate, port) = text.split_once(':').unwrap_or((text, ""));
        let port =
            if port.is_empty() { limits::DEFAULT_RELAY_PORT } else { port.parse().map_err(|_| bad())? };
        match rate.trim().parse() {
            Ok(mbit_per_s @ 1..) => Ok(Self { mbit_per_s, port }),
            _ => Err(bad()),
        }
    }

    fn to_text(&self) -> String {
        format!("{}:{}", self.mbit_per_s, self.port)
    }
}

/// The facts that the event loop tells of the relay.
#[derive(Debug, Clone)]
pub(crate) struct RelayNews {
    port: u16,
    mbit_per_s: u32,
    gauge: Arc<Gauge>,
}

impl RelayNews {
    /// As the status says it.
    pub(crate) fn status(&self) -> StatusRelay {
        let pairs = self.gauge.pairs().into_iter().take(limits::MAX_RELAYED_PAIRS);
        let pairs = pairs.map(|(from, to)| RelayedPair { from: PeerId(from), to: PeerId(to) });
        let (port, mbit_per_s) = (self.port, self.mbit_per_s);
        StatusRelay { port, mbit_per_s, bytes: self.gauge.bytes(), pairs: pairs.collect() }
    }
}

/// Starts the relay of a run: itself, what peers are told of it, and what the status tells.
pub(crate) fn start(
    config: RelayConfig,
    host: IpAddr,
    (run, token): (RunId, u64),
    keys: Option<RunKeys>,
) -> io::Result<(Relay, RelayOffer, RelayNews)> {
    let mbit_per_s = config.mbit_per_s;
    let relay_limits = RelayLimits {
        bytes_per_second: u64::from(mbit_per_s) * 125_000,
        pairs_max: limits::MAX_RELAYED_PAIRS,
        patience: PATIENCE,
    };
    // On all addresses of both families where the master is, too.
    let host = (!host.is_unspecified()).then_some(host);
    let listener = Listener::bind(host, config.port, 1)?;
    let relay = Relay::start(listener, keys.map(Lock::of_master), (run.0, token), relay_limits)?;
    let (port, gauge) = (relay.local_port(), relay.gauge());
    log::info!("relay on port {port} for peers that nobody can dial, at most {mbit_per_s} Mbit/s");
    Ok((relay, RelayOffer { port, token }, RelayNews { port, mbit_per_s, gauge }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_a_rate_and_a_port() {
        let relay = |text| RelayConfig::from_text(text).map(|relay| relay.to_text());
        assert_eq!(relay("100"), Ok("100:48147".to_owned()));
        assert_eq!(relay("100:0"), Ok("100:0".to_owned()));
        for bad in ["", "0", "x", "1:x", "1:65536", "-1"] {
            assert!(relay(bad).is_err(), "{bad}");
        }
    }
}
