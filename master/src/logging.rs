//! The log of the program: to stderr, at the level that the environment asks for.

use log::LevelFilter;

/// Level while the environment does not name one.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::Info;

/// Starts the log. `RUST_LOG` takes precedence over `PCCL_LOG_LEVEL`.
pub(crate) fn start() {
    let wanted = std::env::var("PCCL_LOG_LEVEL").ok();
    let known = wanted.as_deref().map(parse_level);
    let mut builder = env_logger::Builder::new();
    builder.filter_level(known.flatten().unwrap_or(DEFAULT_LEVEL));
    if std::env::var_os("RUST_LOG").is_some() {
        builder.parse_default_env();
    }
    if builder.try_init().is_err() {
        return;
    }
    if let (Some(wanted), Some(None)) = (wanted, known) {
        log::error!(
            "PCCL_LOG_LEVEL={wanted:?} is not one of TRACE, DEBUG, INFO, WARN, ERR, FATAL, NONE; using INFO"
        );
    }
}

/// The level of a name, in upper or lower case.
fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::Trace,
        "DEBUG" => LevelFilter::Debug,
        "INFO" => LevelFilter::Info,
        "WARN" => LevelFilter::Warn,
        "ERR" | "ERROR" | "FATAL" => LevelFilter::Error,
        "NONE" => LevelFilter::Off,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_documented_names() {
        assert_eq!(parse_level("ERR"), Some(LevelFilter::Error));
        assert_eq!(parse_level("debug"), Some(LevelFilter::Debug));
        assert_eq!(parse_level("NONE"), Some(LevelFilter::Off));
        assert_eq!(parse_level("BUG"), None);
    }
}
