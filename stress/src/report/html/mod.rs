//! The report as one page that needs nothing from outside.

mod charts;
mod svg;

use super::{Part, Report, Status, ms};
use charts::rate_text;
use std::fmt::Write;
use svg::escape;

const STYLE: &str = include_str!("style.css");

/// The page.
pub(super) fn page(report: &Report) -> String {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = write!(
        out,
        "<title>pccl-stress: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        report.status.word()
    );
    head(&mut out, report);
    violations(&mut out, report);
    tiles(&mut out, report);
    plots(&mut out, report);
    faults(&mut out, report);
    sizes(&mut out, report);
    checks(&mut out, report);
    parts(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn head(out: &mut String, report: &Report) {
    let good = if report.passed { "good" } else { "bad" };
    let _ = writeln!(
        out,
        "<h1><span class=\"verdict {good}\">{}</span> pccl-stress, {}</h1>",
        report.status.word(),
        long(report.totals.seconds)
    );
    let _ = writeln!(out, "<p class=\"settings\"><code>{}</code></p>", escape(&report.settings));
    let _ = writeln!(out, "<p>{}; build {}</p>", escape(&report.length()), escape(&report.build));
}

fn violations(out: &mut String, report: &Report) {
    if report.status != Status::Failed {
        return;
    }
    out.push_str("<section class=\"violations\">\n<h2>Violations</h2>\n<ol>\n");
    for violation in &report.violations {
        let _ = writeln!(
            out,
            "<li><b>{}</b> in part {} at {:.3} s: {}</li>",
            escape(&violation.check),
            violation.part,
            violation.seconds,
            escape(&violation.text)
        );
    }
    out.push_str("</ol>\n<p>The same schedule again:</p>\n");
    for part in report.parts.iter().filter(|part| part.status == Status::Failed) {
        let _ = writeln!(out, "<pre>{}</pre>", escape(&part.replay));
    }
    out.push_str("</section>\n");
}

fn tiles(out: &mut String, report: &Report) {
    let (totals, kills) = (&report.totals, report.totals.kills());
    let recovery = match kills.undisturbed.count {
        0 => "none".to_owned(),
        _ => ms(kills.undisturbed.quantile_us(50)),
    };
    let gap_at = totals.longest_gap_at_us as f64 / 1e6;
    let tiles = [
        ("throughput kept", totals.kept.words(), "of the undisturbed rate at the same world size".to_owned()),
        ("median recovery after a kill", recovery, format!("slowest {}", ms(kills.undisturbed.max_us))),
        (
            "longest gap",
            ms(totals.longest_gap_us),
            format!("without a completed operation, at {}", long(gap_at)),
        ),
        (
            "operations",
            grouped(totals.counts.operations),
            format!("{} aborted and tried again", grouped(totals.counts.aborted_operations)),
        ),
        (
            "faults",
            grouped(totals.faults_made()),
            format!("{} kills", grouped(totals.faults.get("kill").copied().unwrap_or(0))),
        ),
        (
            "joins",
            grouped(totals.counts.joins),
            format!(
                "{} with the state fetched ahead; {} revisions",
                grouped(totals.counts.joins_ahead),
                grouped(totals.counts.newest_revision)
            ),
        ),
    ];
    out.push_str("<div class=\"tiles\">\n");
    for (name, value, note) in tiles {
        let _ = writeln!(
            out,
            "<div class=\"tile\"><div class=\"name\">{name}</div><div class=\"value\">{}</div><div \
             class=\"note\">{}</div></div>",
            escape(&value),
            escape(&note)
        );
    }
    out.push_str("</div>\n");
}

fn plots(out: &mut String, report: &Report) {
    let mut section = |title: &str, note: &str, plot: &str| {
        let _ = writeln!(out, "<section>\n<h2>{title}</h2>\n<p class=\"note\">{note}</p>\n{plot}</section>");
    };
    section(
        "World size and faults",
        "Members by their own report, and below a stroke for each fault. Grey: no faults are made.",
        &charts::world(&report.timeline),
    );
    section(
        "Operations per second",
        "<i class=\"key line\"></i> completed all-reduces, on average; the band is from the slowest to the fastest \
         moment \
         <i class=\"key expected\"></i> undisturbed rate at the world size of that \
         moment, measured in the beginning",
        &charts::rate(&report.timeline),
    );
    section(
        "Recovery after a kill",
        "From the kill until every survivor has completed an operation without the victim. <i class=\"key bar\"></i> \
         nothing else \
         was wrong <i class=\"key bar second\"></i> while another fault lasted. The axis of time is logarithmic.",
        &charts::recoveries(&report.totals.kills()),
    );
    if report.survivors.is_empty() {
        section("Survivors", "No process lived long enough to be judged (70 s).", "");
        return;
    }
    let mut survivors = String::new();
    for (title, plot) in charts::survivors(report) {
        let _ = writeln!(survivors, "<h3>{title}</h3>\n{plot}");
    }
    survivors.push_str(&survivor_table(report));
    section("Survivors", "What the longest-lived processes used over time.", &survivors);
}

fn survivor_table(report: &Report) -> String {
    let rows = report.survivors.iter().enumerate().map(|(index, survivor)| {
        let growth = &survivor.growth;
        vec![
            format!(
                "<svg class=\"swatch\" viewBox=\"0 0 24 6\"><path class=\"{}\" d=\"M0 3L24 3\"/></svg> {}",
                charts::colour(index),
                escape(&survivor.name)
            ),
            survivor.part.to_string(),
            long(growth.span_us as f64 / 1e6),
            format!("{:+.1} MiB", growth.memory_kib / 1024.0),
            format!("{:+.1}", growth.threads),
            format!("{:+.1}", growth.descriptors),
        ]
    });
    table(&["process", "part", "observed for", "memory", "threads", "descriptors"], rows)
}

fn faults(out: &mut String, report: &Report) {
    let totals = &report.totals;
    let rows = totals.faults.iter().map(|(kind, count)| {
        let recovery = totals.recoveries.get(kind).cloned().unwrap_or_default();
        let words = |histogram: &super::Histogram, percent| match histogram.count {
            0 => "–".to_owned(),
            _ => ms(histogram.quantile_us(percent)),
        };
        let cost = totals.costs.get(kind).map_or("–".to_owned(), super::Cost::words);
        vec![
            escape(kind),
            grouped(*count),
            words(&recovery.undisturbed, 50),
            words(&recovery.undisturbed, 95),
            words(&recovery.undisturbed, 100),
            words(&recovery.disturbed, 100),
            cost,
        ]
    });
    let head = [
        "fault",
        "made",
        "recovery: median",
        "95 %",
        "slowest",
        "slowest while another lasted",
        "work lost for each",
    ];
    let _ = writeln!(
        out,
        "<section>\n<h2>Faults</h2>\n\
         <p class=\"note\">Recovery: until every member that nothing is done to has completed an operation. \
         Work lost: undisturbed time that is missing from such a fault to the next of any kind; with many faults at \
         the same \
         time it is told of the last one.</p>\n{}</section>",
        table(&head, rows)
    );
}

fn sizes(out: &mut String, report: &Report) {
    let rows = report.totals.sizes.iter().map(|(size, at)| {
        let seconds = at.us as f64 / 1e6;
        vec![
            size.to_string(),
            long(seconds),
            rate_text(at.kept.operations as f64 / seconds.max(1e-6)),
            rate_text(at.kept.expected / seconds.max(1e-6)),
            at.kept.words(),
        ]
    });
    let _ = writeln!(
        out,
        "<section>\n<h2>Throughput by world size</h2>\n{}</section>",
        table(&["members", "time under faults", "operations per second", "undisturbed", "kept"], rows)
    );
}

fn checks(out: &mut String, report: &Report) {
    let rows = report.violations_per_check.iter().map(|(check, failed)| {
        let verdict = match failed {
            0 => "<span class=\"good\">held</span>".to_owned(),
            failed => format!("<span class=\"bad\">failed {failed} x</span>"),
        };
        let meaning = crate::oracle::Check::ALL.into_iter().find(|known| known.name() == check);
        vec![escape(check), meaning.map_or("", crate::oracle::Check::meaning).to_owned(), verdict]
    });
    let _ = writeln!(out, "<section>\n<h2>Checks</h2>\n{}</section>", table(&["check", "", ""], rows));
}

fn parts(out: &mut String, report: &Report) {
    let row = |part: &Part| {
        vec![
            part.number.to_string(),
            part.status.word().to_lowercase(),
            utc(part.began_unix_s),
            format!("{:.0} s of {} s", part.seconds, part.wanted_seconds),
            part.seed.to_string(),
            grouped(part.operations),
            grouped(part.faults),
            part.kept.words(),
            escape(&part.machine),
        ]
    };
    let head = ["part", "", "began (UTC)", "length", "seed", "operations", "faults", "kept", "machine"];
    let _ =
        writeln!(out, "<section>\n<h2>Parts</h2>\n{}</section>", table(&head, report.parts.iter().map(row)));
}

/// A table of cells that are markup already.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |cells: &mut dyn Iterator<Item = String>| cells.collect::<Vec<_>>().concat();
    let mut out = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    out.push_str(&cells(&mut head.iter().map(|cell| format!("<th>{cell}</th>"))));
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let row = cells(&mut row.iter().map(|cell| format!("<td>{cell}</td>")));
        let _ = writeln!(out, "<tr>{row}</tr>");
    }
    out.push_str("</tbody>\n</table></div>\n");
    out
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// A length of time as people say it.
fn long(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..100 => format!("{seconds:.1} s"),
        100..6000 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

/// A moment, given in seconds since 1970 (civil date by the algorithm of H. Hinnant, `chrono-Compatible Low-Level Date
/// Algorithms`).
fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests;
