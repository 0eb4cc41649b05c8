//! Settings as texts: what the command line, C and Python give. Each is declared once, in `config`, with the field that
//! it sets.

mod text;

pub(crate) use text::Text;

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
    pub(crate) set: fn(&mut C, &str) -> Result<(), String>,
}

impl<C> Setting<C> {
    /// Whether it is a list, each entry of which may be given by itself.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.form.ends_with(",...")
    }

    /// Whether it is true or false.
    #[must_use]
    pub fn is_flag(&self) -> bool {
        self.form == <bool as Text>::FORM
    }
}

/// Sets one of these settings by its name. The error of one that there is not lists all names.
pub(crate) fn set<C>(all: &[Setting<C>], config: &mut C, name: &str, text: &str) -> Result<(), String> {
    let Some(setting) = all.iter().find(|setting| setting.name == name) else {
        let names: Vec<_> = all.iter().map(|setting| setting.name).collect();
        return Err(format!("{name:?} is no setting: {}", names.join(", ")));
    };
    (setting.set)(config, text).map_err(|why| format!("{name}: {why}"))
}

/// Declares the settings: the struct, its defaults, and the table of settings as texts. Behind the documentation of a
/// field, in brackets, stands what does not follow from its name and type.
macro_rules! settings {
    ($(#[doc = $about:literal])+ pub struct $Config:ident {
        $($(#[doc = $text:literal])+ [$($key:ident = $value:expr),*] $name:ident: $type:ty = $default:expr;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $Config {
            $($(#[doc = $text])+ pub $name: $type,)+
        }

        impl Default for $Config {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl $Config {
            /// All settings, in the order of the fields.
            pub const SETTINGS: &'static [Setting<Self>] = &[$({
                #[allow(unused_mut)]
                let mut setting = Setting {
                    name: stringify!($name),
                    form: <$type as Text>::FORM,
                    text: concat!($($text, "\n"),+),
                    argument: if <$type as Text>::IS_SECRET { None } else { Some(stringify!($name)) },
                    alias: None,
                    variable: None,
                    default: || Text::to_text(&$Config::default().$name),
                    set: |config: &mut $Config, text: &str| {
                        config.$name = <$type as Text>::from_text(text)?;
                        Ok(())
                    },
                };
                $(setting.$key = $value;)*
                setting
            }),+];
        }
    };
}
pub(crate) use settings;
