//! Settings of PCCL as texts: what the command line, C and Python give. Each is declared once, with the field that it
//! sets ([`settings!`]), by the crate that goes by it.
#![forbid(unsafe_code)]

mod text;

pub use text::Text;

/// A setting that has a name and can be given as a text.
#[derive(Debug)]
pub struct Setting<C> {
    /// Its name: that of the field.
    pub name: &'static str,
    /// The kind of text, in one word: `TIME`, `N`, `true or false`.
    pub form: &'static str,
    /// Its effect, and the meaning of its default.
    pub text: &'static str,
    /// Its name on the command line, with `_` for `-`; a secret has none.
    pub argument: Option<&'static str>,
    /// An earlier name of that argument.
    pub alias: Option<&'static str>,
    /// The environment variable that stands in for it.
    pub variable: Option<&'static str>,
    /// Its value when it is not given, as a text.
    pub default: fn() -> String,
    /// Changes the field. The error is the fault of the text, without the name of the setting.
    pub set: fn(&mut C, &str) -> Result<(), String>,
}

impl<C> Setting<C> {
    /// Whether it is a list, each entry of which may be given by itself.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.form.ends_with(",...")
    }

    /// Its text in one line, without the links of its documentation.
    #[must_use]
    pub fn paragraph(&self) -> String {
        let mut line = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        while let Some(middle) = line.find("](") {
            let Some(begin) = line[..middle].rfind('[') else { break };
            let Some(end) = line[middle..].find(')').map(|end| middle + end) else { break };
            line = format!("{}{}{}", &line[..begin], &line[begin + 1..middle], &line[end + 1..]);
        }
        line.replace("[`", "`").replace("`]", "`")
    }

    /// Whether it is true or false.
    #[must_use]
    pub fn is_flag(&self) -> bool {
        self.form == <bool as Text>::FORM
    }
}

/// Sets one of these settings by its name, from a text: times as `10s`, `500ms`, `2m` or plain seconds; `true` or
/// `false`; lists with commas; `none` for what is off.
///
/// # Errors
/// There is no such setting, then all names are listed; or the text is none of its form. A key is not repeated.
pub fn set<C>(all: &[Setting<C>], config: &mut C, name: &str, text: &str) -> Result<(), String> {
    let Some(setting) = all.iter().find(|setting| setting.name == name) else {
        let names: Vec<_> = all.iter().map(|setting| setting.name).collect();
        return Err(format!("{name:?} is no setting: {}", names.join(", ")));
    };
    (setting.set)(config, text).map_err(|why| format!("{name}: {why}"))
}

/// Declares the settings: the struct, its defaults, and the table of settings as texts. In parentheses behind the name
/// of the struct is the visibility of its fields. Behind the documentation of a field, in brackets, stands what does
/// not follow from its name and type.
///
/// With `methods of Builder` a row may end in a method of the builder, which has the struct in its field `settings`:
/// `by (argument: Type => value)`, or `by (text argument)`: then the builder's `set_later` takes the text, and keeps
/// its fault. The method has the documentation of the row.
#[macro_export]
macro_rules! settings {
    ($(#[doc = $about:literal])+ pub struct $Config:ident, fields ($vis:vis) $(, methods of $Builder:ident)? {
        $($(#[doc = $text:literal])+ [$($key:ident = $value:expr),*] $name:ident: $type:ty = $default:expr
            $(, by $by:tt)?;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Config {
            $($(#[doc = $text])+ $vis $name: $type,)+
        }

        impl Default for $Config {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl $Config {
            /// All settings, in the order of the fields.
            pub const SETTINGS: &'static [$crate::Setting<Self>] = &[$({
                #[allow(unused_mut)]
                let mut setting = $crate::Setting {
                    name: stringify!($name),
                    form: <$type as $crate::Text>::FORM,
                    text: concat!($($text, "\n"),+),
                    argument: if <$type as $crate::Text>::IS_SECRET { None } else { Some(stringify!($name)) },
                    alias: None,
                    variable: None,
                    default: || $crate::Text::to_text(&$Config::default().$name),
                    set: |config: &mut $Config, text: &str| {
                        config.$name = <$type as $crate::Text>::from_text(text)?;
                        Ok(())
                    },
                };
                $(setting.$key = $value;)*
                setting
            }),+];
        }

        $crate::settings! { @methods [$($Builder)?] $([$(#[doc = $text])+] $name [$($by)?])+ }
    };
    (@methods [] $($rows:tt)*) => {};
    (@methods [$Builder:ident] $([$($doc:tt)+] $name:ident [$($by:tt)?])+) => {
        impl $Builder {
            $($crate::settings! { @method [$($doc)+] $name [$($by)?] })+
        }
    };
    (@method [$($doc:tt)+] $name:ident []) => {};
    (@method [$($doc:tt)+] $name:ident [(text $argument:ident)]) => {
        $($doc)+
        pub fn $name(self, $argument: &str) -> Self {
            self.set_later(stringify!($name), $argument)
        }
    };
    (@method [$($doc:tt)+] $name:ident [($argument:ident: $type:ty => $value:expr)]) => {
        $($doc)+
        pub fn $name(mut self, $argument: $type) -> Self {
            self.settings.$name = $value;
            self
        }
    };
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "what the macro makes is public")]
mod tests {
    use super::*;
    use std::time::Duration;

    settings! {
        /// Settings of a test.
        pub struct Config, fields (pub), methods of Builder {
            /// How long. See [`a page`](somewhere), [one](more) and [`another`], at `[::]`.
            [variable = Some("LONG")]
            long: Duration = Duration::from_secs(3), by (time: Duration => time);
            /// A secret.
            []
            key: Option<tinysockets::key::RunKey> = None, by (text key);
            /// A name.
            [argument = Some("called")]
            name: Option<String> = None;
        }
    }

    struct Builder {
        settings: Config,
        bad: Option<String>,
    }

    impl Builder {
        fn set_later(mut self, name: &str, text: &str) -> Self {
            self.bad = set(Config::SETTINGS, &mut self.settings, name, text).err();
            self
        }
    }

    #[test]
    fn a_declaration_makes_fields_rows_and_methods() {
        let [long, key, name] = Config::SETTINGS else { panic!("three rows") };
        assert_eq!((long.form, long.argument, long.variable), ("TIME", Some("long"), Some("LONG")));
        assert_eq!((key.argument, name.argument), (None, Some("called")));
        assert_eq!([(long.default)(), (key.default)(), (name.default)()], ["3s", "none", ""]);
        assert_eq!(long.paragraph(), "How long. See `a page`, one and `another`, at `[::]`.");
        let builder = Builder { settings: Config::default(), bad: None }.long(Duration::ZERO).key("secret");
        assert_eq!(builder.settings.long, Duration::ZERO);
        assert!(builder.bad.is_some_and(|bad| bad.starts_with("key: ") && !bad.contains("secret")));
    }

    #[test]
    fn a_name_may_be_any_text_and_what_is_no_setting_is_told_all_names() {
        let mut config = Config::default();
        assert_eq!(set(Config::SETTINGS, &mut config, "name", "none"), Ok(()));
        assert_eq!(config.name.as_deref(), Some("none"));
        let error = set(Config::SETTINGS, &mut config, "names", "x").expect_err("there is none");
        assert_eq!(error, "\"names\" is no setting: long, key, name");
    }
}
