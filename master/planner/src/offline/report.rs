//! A plan for people, and for programs.

use super::Input;
use crate::{
    BySites, Certified, EQUALLY_FAST, Interfaces, NoPlan, Objective, Plan, SHARE_PARTS, Schedules, Uplink,
};
use pccl_protocol::{
    Algorithm,
    json::{list, object, text},
};
use std::{
    fmt::{self, Write},
    time::Duration,
};

/// Size of the all-reduce whose time is predicted.
const PREDICTED_BYTES: u64 = 1_000_000_000;

/// A plan with all that is needed to tell of it.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// Where the plan is from.
    pub input: &'a Input,
    /// The goal that was asked for.
    pub objective: Objective,
    /// The answer.
    pub plan: &'a Plan,
    /// Facts that are known beside the matrix.
    pub surroundings: &'a Surroundings,
    /// How long it took.
    pub took: Duration,
}

/// Facts that decide between schedules beside the edges.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The name of the site of each peer, as a number, where it has one; sites of others are looked for.
    pub sites: Vec<Option<u16>>,
    /// Uplinks that peers have in common on their way to others.
    pub uplinks: Vec<Uplink>,
}

impl Report<'_> {
    fn name(&self, peer: usize) -> &str {
        &self.input.names[peer]
    }

    fn objective_name(&self) -> &'static str {
        match self.objective {
            Objective::Balanced => "balanced",
            Objective::Bottleneck => "bottleneck",
            Objective::Sum => "sum",
        }
    }

    fn objective_in_words(&self) -> String {
        match self.objective {
            Objective::Balanced => format!(
                "of all rings whose slowest edge is within {:.0} % of the best, that with the lowest sum",
                (1.0 - EQUALLY_FAST) * 100.0
            ),
            Objective::Bottleneck => "the best slowest edge, then the lowest sum".to_owned(),
            Objective::Sum => "the lowest sum".to_owned(),
        }
    }

    fn edge_unit(&self) -> &'static str {
        if self.input.matrix.is_costs() { "cost" } else { "mbit_s" }
    }

    /// The quantity that is summed up, and the divisor of the planner's figures for it.
    fn sum_unit(&self) -> (&'static str, f64) {
        let matrix = &self.input.matrix;
        if matrix.is_costs() {
            ("cost", self.input.cost_scale)
        } else if matrix.latency_us(0, 0).is_some() {
            ("latency_ms", 1e3)
        } else {
            ("s_per_gbit", 1e6)
        }
    }

    /// The value of the slowest edge.
    fn slowest_value(&self) -> Option<f64> {
        let (from, to) = self.plan.slowest?;
        self.input.matrix.value(from, to).map(|value| value / self.input.cost_scale)
    }

    /// Of the figure that the objective names: the slowest edge, or the sum.
    fn main_figure(&self) -> Option<Certified> {
        let scaled =
            |figure: Certified, by: f64| Certified { value: figure.value / by, bound: figure.bound / by };
        match self.objective {
            Objective::Sum => self.plan.total.map(|total| scaled(total, self.sum_unit().1)),
            _ => self.plan.bottleneck.map(|bottleneck| scaled(bottleneck, self.input.cost_scale)),
        }
    }

    /// One line of JSON, without a line end. Fields may be added in later versions, none is ever renamed.
    pub fn to_json(&self) -> String {
        let plan = self.plan;
        let figure = |value: Option<f64>| value.map_or("null".to_owned(), |value| value.to_string());
        let (sum_unit, by) = self.sum_unit();
        let main = self.main_figure();
        let total = plan.total;
        let bottleneck = plan.bottleneck.map(|b| b.bound / self.input.cost_scale);
        let slowest = plan.slowest.map_or("null".to_owned(), |(from, to)| {
            let value = figure(self.slowest_value());
            object(&[("from", text(self.name(from))), ("to", text(self.name(to))), (self.edge_unit(), value)])
        });
        let places =
            plan.split_places.iter().map(|place| list(place.iter().map(|&peer| text(self.name(peer)))));
        let predicted = plan.predicted_time(&self.input.matrix, PREDICTED_BYTES);
        let schedules = self.schedules();
        let predicted_ms = |mbit_s: Option<f64>| figure(mbit_s.map(|mbit_s| predicted_s(mbit_s) * 1000.0));
        let schedule = schedules.as_ref().map_or("null".to_owned(), |found| text(chosen(found)));
        let by_sites = schedules.as_ref().and_then(|found| found.sites.as_ref());
        let sites = by_sites.map_or("null".to_owned(), |found| {
            list(sites_of(found).map(|site| list(site.iter().map(|&peer| text(self.name(peer))))))
        });
        object(&[
            ("order", list(plan.order.iter().map(|&peer| text(self.name(peer))))),
            ("objective", text(self.objective_name())),
            ("value", figure(main.map(|m| m.value))),
            ("bound", figure(main.map(|m| m.bound))),
            ("gap", figure(main.map(|m| m.gap()))),
            ("proven", plan.proven.to_string()),
            ("slowest_edge", slowest),
            ("slowest_bound", figure(bottleneck)),
            ("sum_of", text(sum_unit)),
            ("sum", figure(total.map(|t| t.value / by))),
            ("sum_bound", figure(total.map(|t| t.bound / by))),
            ("split_places", list(places)),
            ("predicted_ms_per_gb", figure(predicted.map(|time| time.as_micros() as f64 / 1000.0))),
            ("pairwise_ms_per_gb", predicted_ms(schedules.as_ref().and_then(|found| found.pairwise))),
            ("sites_ms_per_gb", predicted_ms(by_sites.map(|found| found.rate))),
            ("schedule", schedule),
            ("shares_pct", self.shares_pct(schedules.as_ref()).map_or("null".to_owned(), list)),
            ("sites", sites),
            ("site_shares_pct", by_sites.map_or("null".to_owned(), |found| list(site_shares_pct(found)))),
            ("took_ms", figure(Some(self.took.as_micros() as f64 / 1000.0))),
        ])
    }

    /// How fast large operations are by each schedule; none for costs.
    fn schedules(&self) -> Option<Schedules> {
        let matrix = &self.input.matrix;
        let Surroundings { sites, uplinks } = self.surroundings;
        let interfaces = Interfaces { uplinks: uplinks.clone(), ..Interfaces::of(matrix) };
        let found = Schedules::of(matrix, &interfaces, &self.plan.order)?;
        Some(found.with_sites(matrix, &interfaces, sites))
    }

    fn sites_line(&self, found: &BySites) -> String {
        let site = |(peers, share): (Vec<usize>, String)| {
            let names: Vec<&str> = peers.iter().map(|&peer| self.name(peer)).collect();
            format!("{} ({share} %)", names.join(" "))
        };
        sites_of(found).zip(site_shares_pct(found)).map(site).collect::<Vec<_>>().join(", ")
    }

    /// The share of each peer in pairwise exchange, in per cent, in the order of the ring. None if that is the same.
    fn shares_pct(&self, found: Option<&Schedules>) -> Option<impl Iterator<Item = String>> {
        let shares = found.map(|found| found.shares.clone()).filter(|shares| !shares.is_empty())?;
        let pct = move |peer: &usize| (f64::from(shares[*peer]) * 100.0 / f64::from(SHARE_PARTS)).to_string();
        Some(self.plan.order.iter().map(pct))
    }

    fn shares_line(&self, found: &Schedules) -> Option<String> {
        let names = self.plan.order.iter().map(|&peer| self.name(peer));
        let shares = names.zip(self.shares_pct(Some(found))?).map(|(name, pct)| format!("{name} {pct} %"));
        Some(format!("by pairwise exchange: {}", shares.collect::<Vec<_>>().join(", ")))
    }

    fn schedule_line(&self, found: &Schedules) -> Option<String> {
        let seconds = |mbit_s: f64| format!("{} s", short(predicted_s(mbit_s)));
        let other = |name: &str, mbit_s: Option<f64>| {
            mbit_s.map_or(String::new(), |mbit_s| format!(", {name} {}", seconds(mbit_s)))
        };
        let pairwise = other("pairwise", Some(found.pairwise?));
        let sites = other("sites", found.sites.as_ref().map(|found| found.rate));
        Some(format!("{}; predicted for 1 GB: ring {}{pairwise}{sites}", chosen(found), seconds(found.ring)))
    }

    fn slowest_line(&self) -> Option<String> {
        let (from, to) = self.plan.slowest?;
        let value = self.slowest_value()?;
        let unit = if self.input.matrix.is_costs() { "cost" } else { "Mbit/s" };
        let mut line = format!("{} -> {}, {} {unit}", self.name(from), self.name(to), short(value));
        if let Some(bottleneck) = self.plan.bottleneck {
            let bound = bottleneck.bound / self.input.cost_scale;
            let best = if self.objective == Objective::Balanced && bottleneck.bound != bottleneck.value {
                format!("; no ring does better than {}", short(bound))
            } else if bottleneck.is_proven() {
                "; no ring does better".into()
            } else {
                format!("; no ring does better than {}, gap {:.2} %", short(bound), bottleneck.gap() * 100.0)
            };
            line += &best;
        }
        Some(line)
    }

    fn sum_line(&self) -> Option<String> {
        let total = self.plan.total?;
        let (unit, by) = self.sum_unit();
        let of = match unit {
            "latency_ms" => "latencies, ms",
            "s_per_gbit" => "1 / rate, s/Gbit",
            _ => "costs",
        };
        let value = short(total.value / by);
        let proof = if total.is_proven() {
            "the least possible".to_owned()
        } else {
            format!("at least {}, gap {:.2} %", short(total.bound / by), total.gap() * 100.0)
        };
        let among = if self.objective == Objective::Sum { "" } else { " over edges fast enough" };
        Some(format!("{value} ({of}); {proof}{among}"))
    }
}

/// The schedule that a run takes for large operations.
fn chosen(schedules: &Schedules) -> &'static str {
    match schedules.preferred(Algorithm::Ring) {
        Algorithm::Sites => "sites",
        Algorithm::Pairwise => "pairwise",
        _ => "ring",
    }
}

/// The peers of each site.
fn sites_of(found: &BySites) -> impl Iterator<Item = Vec<usize>> + '_ {
    let of = &found.sites.of;
    let members = move |site: usize| (0..of.len()).filter(|peer| usize::from(of[*peer]) == site).collect();
    (0..found.sites.count()).map(members)
}

/// The share of each site, in per cent.
fn site_shares_pct(found: &BySites) -> impl Iterator<Item = String> + '_ {
    let (shares, peers) = (&found.sites.shares, found.sites.of.len());
    sites_of(found).enumerate().map(move |(site, members)| {
        match shares.get(site) {
            Some(share) => f64::from(*share) * 100.0 / f64::from(SHARE_PARTS),
            None => (members.len() as f64 * 1000.0 / peers as f64).round() / 10.0,
        }
        .to_string()
    })
}

/// How long so fast a schedule takes.
fn predicted_s(mbit_s: f64) -> f64 {
    PREDICTED_BYTES as f64 * 8.0 / 1e6 / mbit_s
}

/// With six significant digits, or all of a whole number.
fn short(value: f64) -> String {
    if value.fract() == 0.0 {
        return value.to_string();
    }
    let digits = 5 - value.abs().log10().floor().clamp(0.0, 5.0) as usize;
    format!("{value:.digits$}")
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.plan.order.iter().map(|&peer| self.name(peer)).collect();
        writeln!(f, "ring:         {}", names.join(" -> "))?;
        writeln!(f, "objective:    {}: {}", self.objective_name(), self.objective_in_words())?;
        if let Some(line) = self.slowest_line() {
            writeln!(f, "slowest edge: {line}")?;
        }
        if let Some(line) = self.sum_line() {
            writeln!(f, "sum:          {line}")?;
        }
        writeln!(f, "proven:       {}", if self.plan.proven { "yes" } else { "no" })?;
        for place in &self.plan.split_places {
            let names: Vec<&str> = place.iter().map(|&peer| self.name(peer)).collect();
            writeln!(f, "apart:        {} are not all next to each other", names.join(", "))?;
        }
        if let Some(time) = self.plan.predicted_time(&self.input.matrix, PREDICTED_BYTES) {
            writeln!(f, "all-reduce:   about {} s for 1 GB", short(time.as_secs_f64()))?;
        }
        let schedules = self.schedules();
        if let Some(line) = schedules.as_ref().and_then(|found| self.schedule_line(found)) {
            writeln!(f, "schedule:     {line}")?;
        }
        if let Some(line) = schedules.as_ref().and_then(|found| self.shares_line(found)) {
            writeln!(f, "shares:       {line}")?;
        }
        if let Some(found) = schedules.as_ref().and_then(|found| found.sites.as_ref()) {
            writeln!(f, "sites:        {}", self.sites_line(found))?;
        }
        writeln!(f, "took:         {} ms", short(self.took.as_micros() as f64 / 1000.0))
    }
}

/// Why there is no plan, for people.
pub fn no_plan_to_text(none: &NoPlan, names: &[String]) -> String {
    let mut out = none.to_string();
    for obstacle in &none.obstacles {
        // Writing to a string cannot fail.
        let _ = write!(out, ": {}", obstacle.describe(names));
    }
    out
}

/// Why there is no plan, for programs: `order` is null.
pub fn no_plan_to_json(none: &NoPlan, names: &[String]) -> String {
    object(&[
        ("order", "null".to_owned()),
        ("proven", none.proven.to_string()),
        ("obstacles", list(none.obstacles.iter().map(|obstacle| text(&obstacle.describe(names))))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Obstacle, Options,
        offline::{Kind, read},
        rings::plan,
    };

    fn planned(input: &Input, objective: Objective) -> Plan {
        let options = Options { objective, ..Options::default() };
        plan(&input.matrix, &options, &mut || Duration::from_secs(3600)).unwrap()
    }

    #[test]
    fn every_figure_has_its_place() {
        let input = read("a,b,\"c\"\"\"\n,100,50\n40,,10\n80,80,\n", Kind::Rates, None).unwrap();
        let plan = planned(&input, Objective::Bottleneck);
        let report = Report {
            input: &input,
            objective: Objective::Bottleneck,
            plan: &plan,
            surroundings: &Surroundings::default(),
            took: Duration::from_millis(3),
        };
        assert_eq!(
            report.to_json(),
            concat!(
                r#"{"order":["a","c\"","b"],"objective":"bottleneck","value":40,"bound":40,"gap":0,"proven":true,"#,
                r#""slowest_edge":{"from":"b","to":"a","mbit_s":40},"slowest_bound":40,"#,
                r#""sum_of":"s_per_gbit","sum":57.5,"sum_bound":57.5,"split_places":[],"#,
                r#""predicted_ms_per_gb":266666.666,"pairwise_ms_per_gb":206000.00000000003,"#,
                r#""sites_ms_per_gb":400000,"schedule":"pairwise","#,
                r#""shares_pct":[74.3,22.7,3],"sites":[["a","c\""],["b"]],"#,
                r#""site_shares_pct":[66.7,33.3],"took_ms":3}"#
            )
        );
        let text = report.to_string();
        assert!(
            text.contains("objective:    bottleneck: the best slowest edge, then the lowest sum\n"),
            "{text}"
        );
        assert!(text.contains("slowest edge: b -> a, 40 Mbit/s; no ring does better\n"), "{text}");
        assert!(text.contains("sum:          57.5000 (1 / rate, s/Gbit); the least possible"), "{text}");
        // b sends 40, so that it owns next to nothing: of all it sends its contribution once.
        let shares = "shares:       by pairwise exchange: a 74.3 %, c\" 22.7 %, b 3 %\n";
        assert!(text.contains(shares), "{text}");
    }

    #[test]
    fn the_schedule_is_chosen_by_what_is_predicted() {
        let slow_apart = "a,b,c,d\n,900,300,300\n900,,300,300\n300,300,,900\n300,300,900,\n";
        let input = read(slow_apart, Kind::Rates, None).unwrap();
        let plan = planned(&input, Objective::Balanced);
        let objective = Objective::Balanced;
        let report = Report {
            input: &input,
            objective,
            plan: &plan,
            surroundings: &Surroundings::default(),
            took: Duration::ZERO,
        };
        let text = report.to_string();
        let line = "schedule:     pairwise; predicted for 1 GB: ring 40 s, pairwise 13.3333 s, \
             sites 13.3333 s\n";
        assert!(text.contains(line) && !text.contains("shares:"), "{text}");
        assert!(text.contains("sites:        a b (50 %), c d (50 %)\n"), "{text}");
        assert!(report.to_json().contains(r#""schedule":"pairwise","shares_pct":null,"#));
    }

    #[test]
    fn costs_are_printed_as_they_were_written() {
        let input = read("a,b\n,0.5\n1.25,\n", Kind::Costs, None).unwrap();
        let plan = planned(&input, Objective::Sum);
        let report = Report {
            input: &input,
            objective: Objective::Sum,
            plan: &plan,
            surroundings: &Surroundings::default(),
            took: Duration::ZERO,
        };
        let json = report.to_json();
        assert!(json.contains(r#""value":1.75,"bound":1.75,"#) && json.contains(r#""cost":1.25}"#), "{json}");
        assert!(json.contains(r#""predicted_ms_per_gb":null"#), "{json}");
    }

    #[test]
    fn obstacles_name_their_peers() {
        let names: Vec<String> = ["a", "b", "c"].map(String::from).into();
        let none = NoPlan {
            obstacles: vec![Obstacle::OneWay { inside: vec![1, 2], outside: vec![0] }],
            proven: true,
        };
        assert_eq!(no_plan_to_text(&none, &names), "there is no ring: there is no way from b, c to a");
        assert!(
            no_plan_to_json(&none, &names).starts_with(r#"{"order":null,"proven":true,"obstacles":["there"#)
        );
    }
}
