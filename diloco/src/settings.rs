//! Settings of a run, and which of them make sense.

use crate::{Compression, Fragments, OuterStep};
use pccl::Error;
use pccl_samples::{MAX_MEMBERS, Order};
use pccl_settings::Text;
use std::{path::PathBuf, time::Duration};

/// Longest grace time.
const MAX_GRACE: Duration = Duration::from_secs(24 * 3600);

/// How long a round waits for members that are not ready, once a quorum is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grace {
    /// One and a half inner steps of the slowest member, as measured: a member that computes has its next step
    /// boundary by then.
    #[default]
    Auto,
    /// As long as this.
    Fixed(Duration),
}

impl Text for Grace {
    const FORM: &'static str = "TIME or auto";

    fn from_text(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            time => Duration::from_text(time).map(Self::Fixed).map_err(|why| format!("{why}, or auto")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(grace) => grace.to_text(),
        }
    }
}

impl Text for Compression {
    const FORM: &'static str = "none, bf16, int8, int4, int2 or largest 1/N";

    fn from_text(text: &str) -> Result<Self, String> {
        let refusal = || format!("{text:?}: write {}", Self::FORM);
        match text.trim().strip_prefix("largest 1/") {
            Some(number) => number.parse().map(Self::Largest).map_err(|_| refusal()),
            None => Self::ALL.into_iter().find(|it| it.to_string() == text.trim()).ok_or_else(refusal),
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Text for OuterStep {
    const FORM: &'static str = "nesterov RATE MOMENTUM, or average";

    fn from_text(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is no number"));
        match words.as_slice() {
            ["average"] => Ok(Self::Average),
            ["nesterov"] => Ok(Self::default()),
            ["nesterov", rate, momentum] => {
                Ok(Self::Nesterov { rate: number(rate)?, momentum: number(momentum)? })
            }
            _ => Err(format!("{text:?}: write {}", Self::FORM)),
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

pccl_settings::settings! {
    /// Settings of a run. All members give the same; a member with others is told both.
    pub struct Settings, fields (pub) {
        /// Inner steps between two rounds of the same fragment (H of the papers). Default 100.
        []
        every: u32 = 100;
        /// Fragments of equal size (P of Streaming DiLoCo). They take turns, one each `every / fragments` steps, so
        /// `every` is a multiple of it. Default 1.
        []
        fragments: u32 = 1;
        /// Fragments of the caller's choice, as lengths in elements; they replace equal ones. Default: none.
        []
        fragment_lengths: Vec<usize> = Vec::new();
        /// Inner steps that go on while a fragment travels (tau of Streaming DiLoCo): at most `every / fragments`. 0
        /// waits for the result at once. Default 0.
        []
        overlap: u32 = 0;
        /// How much of the own parameters stays when a result comes: with 0 they become the outer parameters, with 1
        /// they stay as they are. Default: one half with overlap, as Streaming DiLoCo recommends for few steps; 0
        /// without it, and where only the largest elements travel.
        []
        alpha: Option<f32> = None;
        /// The step of the outer optimiser. Default: Nesterov momentum with rate 0.7 and momentum 0.9.
        []
        outer: OuterStep = OuterStep::default();
        /// How contributions travel. Default: as they are.
        []
        compression: Compression = Compression::None;
        /// The part of the members that has to be ready before a round begins, above 0 and up to 1. With 1 all wait for
        /// the slowest, and each makes the same number of steps. Default 1.
        []
        quorum: f64 = 1.0;
        /// How long a round waits for the other members, once a quorum is ready. Default auto: one and a half steps of
        /// the slowest member.
        []
        grace: Grace = Grace::Auto;
        /// Members of the own peer group that are waited for before each round, at least 1. Default 2.
        []
        min_world: usize = 2;
        /// Samples of the data set, each of which the run counts once an epoch; see
        /// [`DiLoCo::take_samples`](crate::DiLoCo::take_samples). Default 0: members choose theirs by themselves.
        []
        samples: u64 = 0;
        /// The seed of their order. Default: none, they come as they are.
        []
        samples_seed: Option<u64> = None;
        /// How often each sample is counted. Default 1.
        []
        samples_epochs: u64 = 1;
        /// How many samples a member holds at a time: twice those of `every / fragments + overlap` of its steps, so
        /// that none has to wait for more. Members may differ in it. Default 1000.
        []
        samples_held: u64 = 1000;
        /// Members that the run has at most, where it counts samples. Default 64.
        []
        samples_members: usize = 64;
        /// A file of [`DiLoCo::save`](crate::DiLoCo::save) to begin with. The run goes on from the newest that a member
        /// brings. Default: none.
        []
        resume: Option<PathBuf> = None;
        /// A file that this member makes and fills with what it gives to each round and with what comes of it, 12 bytes
        /// for each element of a fragment: from those of all members `python -m pccl.diloco.audit` computes each round
        /// again. Default: none.
        []
        audit: Option<PathBuf> = None;
    }
}

impl Settings {
    /// Sets one of them by its name, from a text, as C and Python give it.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such setting, or if the text is none of its form. Whether it makes sense,
    /// [`DiLoCo::join`](crate::DiLoCo::join) says.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), Error> {
        pccl_settings::set(Self::SETTINGS, self, name, text).map_err(Error::InvalidArgument)
    }

    /// How `elements` parameters are cut.
    ///
    /// # Errors
    /// `InvalidArgument` names the setting that makes no sense, and why.
    pub(crate) fn check(&self, elements: usize) -> Result<Fragments, Error> {
        let fragments = match self.fragment_lengths.as_slice() {
            [] => Fragments::even(elements, self.fragments as usize)?,
            lengths => Fragments::of_lengths(lengths)?,
        };
        let (count, every) = (fragments.count(), self.every as usize);
        let refusal = if fragments.elements() != elements {
            format!("fragment_lengths add up to {}, there are {elements} parameters", fragments.elements())
        } else if every == 0 || every % count != 0 {
            format!(
                "every {every} with {count} fragments: every is a multiple of the fragments, which take turns"
            )
        } else if self.overlap as usize > every / count {
            let span = every / count;
            format!(
                "overlap {} above every / fragments, which is {span}: the next fragment goes then",
                self.overlap
            )
        } else if !(0.0..=1.0).contains(&self.alpha()) {
            format!("alpha {}: a part of the own parameters, from 0 to 1", self.alpha())
        } else if !(self.quorum > 0.0 && self.quorum <= 1.0) {
            format!("quorum {}: a part of the members, above 0 and up to 1", self.quorum)
        } else if matches!(self.grace, Grace::Fixed(grace) if grace > MAX_GRACE) {
            "a grace time of more than a day".to_owned()
        } else if matches!(self.compression, Compression::Largest(it) if !Compression::LARGEST.contains(&it))
        {
            format!("compression {}: 1/2 to 1/{}", self.compression, Compression::LARGEST.end())
        } else if self.min_world == 0 {
            "min_world 0: a run has at least 1 member".to_owned()
        } else {
            self.outer.check()?;
            self.check_samples()?;
            return Ok(fragments);
        };
        Err(Error::InvalidArgument(refusal))
    }

    fn check_samples(&self) -> Result<(), Error> {
        let refusal = |text| Err(Error::InvalidArgument(text));
        if self.samples == 0 {
            return Ok(());
        }
        if self.samples_held == 0 {
            return refusal("samples_held 0: at least 1".to_owned());
        }
        if !(1..=MAX_MEMBERS).contains(&self.samples_members) {
            return refusal(format!("samples_members {}: 1 to {MAX_MEMBERS}", self.samples_members));
        }
        match Order::of(self.samples, self.samples_seed, self.samples_epochs) {
            Ok(_) => Ok(()),
            Err(error) => refusal(error.to_string()),
        }
    }

    /// Inner steps between two rounds.
    pub(crate) fn span(&self) -> u64 {
        let count = match self.fragment_lengths.len() {
            0 => self.fragments,
            lengths => lengths as u32,
        };
        u64::from(self.every / count.max(1))
    }

    pub(crate) fn alpha(&self) -> f32 {
        // The way of elements that were not sent is in the errors, and must not be sent again.
        let is_sparse = matches!(self.compression, Compression::Largest(_));
        self.alpha.unwrap_or(if self.overlap == 0 || is_sparse { 0.0 } else { 0.5 })
    }

    /// The settings that all members must have alike, in words.
    pub(crate) fn text(&self, fragments: &Fragments) -> String {
        let grace = match self.grace {
            Grace::Auto => "auto".to_owned(),
            Grace::Fixed(grace) => format!("{grace:?}"),
        };
        let samples = match (self.samples, self.samples_seed) {
            (0, _) => String::new(),
            (length, seed) => {
                let seed = seed.map_or("in order".to_owned(), |seed| format!("seed {seed}"));
                let (epochs, members) = (self.samples_epochs, self.samples_members);
                format!(", samples {length} x {epochs}, {seed}, of {members}")
            }
        };
        format!(
            "every {}, {} fragments (cut {:08x}), overlap {}, alpha {}, {}, compression {}, quorum {}, \
             grace {grace}{samples}",
            self.every,
            fragments.count(),
            fragments.digest(),
            self.overlap,
            self.alpha(),
            self.outer,
            self.compression,
            self.quorum,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_makes_no_sense_is_named() {
        let cases: [(&str, Settings); 10] = [
            ("every 10 with 4", Settings { every: 10, fragments: 4, ..Settings::default() }),
            ("every 0", Settings { every: 0, ..Settings::default() }),
            ("overlap 26", Settings { fragments: 4, overlap: 26, ..Settings::default() }),
            ("alpha 1.5", Settings { alpha: Some(1.5), ..Settings::default() }),
            ("alpha NaN", Settings { alpha: Some(f32::NAN), ..Settings::default() }),
            ("quorum 0", Settings { quorum: 0.0, ..Settings::default() }),
            ("largest 1/1:", Settings { compression: Compression::Largest(1), ..Settings::default() }),
            ("min_world 0", Settings { min_world: 0, ..Settings::default() }),
            ("add up to 7", Settings { fragment_lengths: vec![3, 4], ..Settings::default() }),
            (
                "rate",
                Settings {
                    outer: OuterStep::Nesterov { rate: f32::INFINITY, momentum: 0.9 },
                    ..Settings::default()
                },
            ),
        ];
        for (words, settings) in cases {
            let error = settings.check(1000).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(Settings::default().check(1000).is_ok());
    }

    #[test]
    fn settings_are_set_by_name() {
        let mut settings = Settings::default();
        for setting in Settings::SETTINGS {
            settings.set(setting.name, &(setting.default)()).expect(setting.name);
        }
        assert_eq!(settings, Settings::default());
        for (name, text) in [
            ("outer", "nesterov 0.5 0.8"),
            ("grace", "250ms"),
            ("fragment_lengths", "400,600"),
            ("compression", "largest 1/32"),
        ] {
            settings.set(name, text).expect(name);
        }
        assert_eq!(settings.outer, OuterStep::Nesterov { rate: 0.5, momentum: 0.8 });
        assert_eq!(settings.grace, Grace::Fixed(Duration::from_millis(250)));
        assert_eq!(settings.fragment_lengths, [400, 600]);
        assert_eq!(settings.compression, Compression::Largest(32));
        for (name, text) in
            [("outer", "adam"), ("grace", "soon"), ("quorum", "most"), ("speed", "1"), ("compression", "zip")]
        {
            let error = settings.set(name, text).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn fragments_of_the_callers_choice_take_turns_as_well() {
        let settings = Settings { fragment_lengths: vec![300, 500, 150, 50], ..Settings::default() };
        assert_eq!(settings.check(1000).expect("fragments").count(), 4);
        assert_eq!(settings.span(), 25);
    }
}
