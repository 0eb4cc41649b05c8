use super::*;
use crate::report::tests::report;

/// Problems of the markup: tags that do not match, bare special characters, references to something outside.
fn problems(page: &str) -> Vec<String> {
    let (mut problems, mut open) = (Vec::new(), Vec::new());
    let body = page.strip_prefix("<!DOCTYPE html>\n").unwrap_or(page);
    let (before, rest) = body.split_once("<style>").expect("a style");
    let (_, after) = rest.split_once("</style>").expect("its end");
    let markup = [before, after].concat();
    for piece in markup.split('<').skip(1) {
        let Some((tag, text)) = piece.split_once('>') else {
            problems.push(format!("a tag without end: {piece}"));
            continue;
        };
        for entity in text.split('&').skip(1) {
            let known = ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|name| entity.starts_with(name));
            if !known {
                problems.push(format!("a bare & in {text}"));
            }
        }
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or_default();
        if let Some(closed) = tag.strip_prefix('/') {
            if open.pop() != Some(closed) {
                problems.push(format!("</{closed}> closes something else"));
            }
        } else if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
        if tag.matches('"').count() % 2 == 1 {
            problems.push(format!("an odd quote in {tag}"));
        }
    }
    problems.extend(open.into_iter().map(|tag| format!("<{tag}> is not closed")));
    for outside in ["<script", "http:", "https:", "src=", "href=", "@import", "url("] {
        if page.contains(outside) {
            problems.push(format!("{outside} in the page"));
        }
    }
    problems
}

#[test]
fn pages_are_well_formed_and_need_nothing_from_outside() {
    for status in [Status::Passed, Status::Failed, Status::Interrupted, Status::Unfinished] {
        let report = report(status);
        assert_eq!(problems(&page(&report)), [""; 0]);
        assert_eq!(problems(&page(&report.with(report.clone()))), [""; 0]);
    }
}

#[test]
fn problems_are_found() {
    let good = page(&report(Status::Passed));
    for bad in ["<p>", "</p>", "a & b", "<p class=\">", "<script>", "<img src=\"x\"/>"] {
        let page = good.replace("</main>", &format!("{bad}</main>"));
        assert!(!problems(&page).is_empty(), "{bad}");
    }
}

#[test]
fn violations_stand_on_top_with_the_command_and_cannot_become_markup() {
    let page = page(&report(Status::Failed));
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("wrong &lt;b&gt;&amp;&quot;bytes&quot;\u{fffd}") < place("class=\"tiles\""));
    assert!(place("pccl-stress --seconds 10 --seed 5") < place("class=\"tiles\""));
    assert!(!super::page(&report(Status::Passed)).contains("<section class=\"violations\">"));
}

#[test]
fn an_empty_report_makes_a_page() {
    let mut empty = report(Status::Interrupted);
    empty.timeline = super::super::Timeline::default();
    empty.totals = super::super::Totals::default();
    empty.survivors.clear();
    assert_eq!(problems(&page(&empty)), [""; 0]);
    assert!(page(&empty).contains("no recovery to measure"));
}

#[test]
fn numbers_and_times_are_written_for_people() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([5.04, 3_700.0, 29_000.0].map(long), ["5.0 s", "61 min 40 s", "8 h 3 min"]);
    assert_eq!(utc(0), "1970-01-01 00:00");
    assert_eq!(utc(951_827_696), "2000-02-29 12:34");
    assert_eq!(utc(1_798_761_599), "2026-12-31 23:59");
}
