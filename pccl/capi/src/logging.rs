//! The log, to stderr, and the environment of the original.

use log::LevelFilter;
use std::sync::Once;

/// Settings of the original that have no meaning here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("PCCL_MULTIPLEX_CHUNK_SIZE", "frames have a size of their own"),
    ("PCCL_MAX_CONCURRENT_COLLECTIVE_OPS", "all-reduces in flight do not use up threads"),
];

/// Starts the log at the level that `PCCL_LOG_LEVEL` or `RUST_LOG` asks for, once, and warns of settings without effect.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let wanted = std::env::var("PCCL_LOG_LEVEL").ok();
        let level = wanted.as_deref().map_or(Some(LevelFilter::Error), parse_level);
        let mut builder = env_logger::Builder::new();
        builder.filter_level(level.unwrap_or(LevelFilter::Error));
        if level != Some(LevelFilter::Off) {
            // The warnings of this module are few, and meant for whoever set something.
            builder.filter_module(module_path!(), LevelFilter::Warn);
        }
        if std::env::var_os("RUST_LOG").is_some() {
            builder.parse_default_env();
        }
        if builder.try_init().is_err() {
            return;
        }
        if let (Some(wanted), None) = (wanted, level) {
            log::warn!(
                "PCCL_LOG_LEVEL={wanted:?} is not one of TRACE, DEBUG, INFO, WARN, ERR, FATAL, NONE; using ERR"
            );
        }
        for (name, why) in WITHOUT_EFFECT.iter().filter(|(name, _)| std::env::var_os(name).is_some()) {
            log::warn!("{name} has no effect: {why}");
        }
    });
}

fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::Trace,
        "DEBUG" => LevelFilter::Debug,
        "INFO" => LevelFilter::Info,
        "WARN" => LevelFilter::Warn,
        "ERR" | "ERROR" | "FATAL" | "BUG" => LevelFilter::Error,
        "NONE" => LevelFilter::Off,
        _ => return None,
    })
}
