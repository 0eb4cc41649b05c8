//! The settings of a master on the command line: an argument for each row of their table that is no secret.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use pccl_master::{MasterConfig, MasterError, Setting};

type Row = Setting<MasterConfig>;

/// Settings that were given as arguments, checked one by one.
#[derive(Debug, Default)]
pub(crate) struct Given(Vec<(&'static str, String)>);

impl Given {
    /// The text of a setting, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, text)| text.as_str())
    }

    /// Whether a setting that is true or false was given as true.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Changes the settings that were given.
    pub(crate) fn change(&self, config: &mut MasterConfig) -> Result<(), MasterError> {
        self.0.iter().try_for_each(|(name, text)| config.set(name, text))
    }
}

/// The argument of a setting.
fn argument(row: &'static Row, name: &'static str) -> Arg {
    let check = |text: &str| {
        let set = MasterConfig::default().set(row.name, text);
        set.map(|()| text.to_owned()).map_err(|error| error.to_string())
    };
    let argument = Arg::new(row.name).long(name.replace('_', "-")).help(help(row)).value_parser(check);
    let argument = argument.aliases(row.alias).value_name(row.form);
    if row.is_flag() {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument.action(if row.is_list() { ArgAction::Append } else { ArgAction::Set })
}

/// The text of a setting, in one paragraph, with what stands in for it.
fn help(row: &Row) -> String {
    let mut help = row.paragraph();
    let default = (row.default)();
    if !["none", "false"].contains(&default.as_str()) && !row.text.contains("Default") {
        help += &format!(" [default: {default}]");
    }
    if let Some(variable) = row.variable {
        help += &format!(" [env: {variable}]");
    }
    help
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        let rows = MasterConfig::SETTINGS.iter();
        command.args(rows.filter_map(|row| row.argument.map(|name| argument(row, name))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = MasterConfig::SETTINGS.iter().filter(|row| row.argument.is_some()).filter_map(|row| {
            let texts: Vec<_> = matches.get_many::<String>(row.name)?.map(String::as_str).collect();
            Some((row.name, texts.join(",")))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(arguments: &[&str]) -> Result<Given, Error> {
        let command = Given::augment_args(Command::new("master"));
        let arguments = ["master"].iter().chain(arguments);
        command.try_get_matches_from(arguments).and_then(|matches| Given::from_arg_matches(&matches))
    }

    #[test]
    fn arguments_change_the_settings_of_their_names() {
        Given::augment_args(Command::new("master")).debug_assert();
        let arguments = [
            "--peer-timeout=500ms",
            "--insecure",
            "--trusted-seeder",
            "vault",
            "--trusted-seeder",
            "attic",
            "--listen-address",
            "[::]:0",
            "--masters",
            "a,b",
        ];
        let given = given(&arguments).expect("arguments");
        let mut config = MasterConfig::default();
        given.change(&mut config).expect("settings");
        assert_eq!((config.peer_timeout.as_millis(), config.insecure), (500, true));
        assert_eq!(
            (config.trusted_seeders, config.masters),
            (vec!["vault".into(), "attic".into()], vec!["a".to_owned(), "b".into()])
        );
        assert_eq!((given.get("listen"), given.is_set("insecure")), (Some("[::]:0"), true));
        assert_eq!(given.get("run_name"), None);
    }

    #[test]
    fn values_that_are_none_and_keys_are_refused() {
        for bad in
            [&["--peer-timeout", "soon"][..], &["--min-world-size", "x"], &["--run-key", &"ab".repeat(32)]]
        {
            assert!(given(bad).is_err(), "{bad:?}");
        }
    }
}
