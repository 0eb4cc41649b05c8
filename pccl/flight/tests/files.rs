//! Files of the flight recorder: what is written is read back, and nothing that is read can do harm.

#[path = "../../protocol/tests/arbitrary/mod.rs"]
mod arbitrary;

use arbitrary::arb;
// The strategies need them.
use pccl_flight::{Entry, Event, File, Header, Options, Role, Subject, What, explain};
use pccl_hash as _;
use pccl_protocol::{Cause, GroupId, Name, PeerId, RunId};
use proptest::{collection::vec, option, prelude::*, sample::select};
use tinysockets as _;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", "[ \\\\=\n\r\tn_.]{0,20}", Just("text= name=\\".to_owned())]
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        arb().prop_map(Subject::Op),
        any::<u64>().prop_map(Subject::Tag),
        arb().prop_map(Subject::Epoch),
        arb().prop_map(Subject::World),
        arb().prop_map(Subject::Request),
        arb().prop_map(Subject::Sync),
        any::<u64>().prop_map(Subject::Beat),
        arb().prop_map(Subject::Edge),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let who = (option::of(arb::<PeerId>()), option::of(arb::<PeerId>()), option::of(subject()));
    let numbers = (option::of(any::<u64>()), option::of(any::<u64>()), option::of(arb()));
    let words = (option::of(text()), option::of(arb::<Cause>()), option::of(text()));
    (select(What::ALL), who, numbers, words).prop_map(
        |(what, (peer, other, subject), (count, bytes, part), (name, cause, text))| Event {
            name: name.map(Into::into),
            peer,
            other,
            subject,
            cause,
            count,
            bytes,
            part,
            text: text.map(Into::into),
            ..Event::new(what)
        },
    )
}

fn header() -> impl Strategy<Value = Header> {
    let ids = (select(Role::ALL), option::of(any::<u128>()), option::of(any::<u128>()), any::<u32>());
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (ids, numbers, text(), text()).prop_map(
        |((role, run, peer, group), (pid, instance, started_us, written_us, dropped), host, why)| Header {
            role,
            run: run.map(RunId),
            peer: peer.map(PeerId),
            group: GroupId(group),
            name: Name::new(&why),
            host,
            pid,
            instance,
            started_us,
            written_us,
            dropped,
            why,
        },
    )
}

fn file() -> impl Strategy<Value = File> {
    (header(), vec((any::<u64>(), event()), 0..20)).prop_map(|(header, events)| {
        let entry = |(sequence, (at_us, event))| Entry { sequence: sequence as u64, at_us, event };
        File { header, entries: events.into_iter().enumerate().map(entry).collect() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read_back(file in file()) {
        let text = file.to_text();
        prop_assert_eq!(text.lines().count(), file.entries.len() + 11
            + usize::from(file.header.run.is_some()) + usize::from(file.header.peer.is_some()) + 2);
        prop_assert_eq!(File::parse(&text), Ok((file, None)));
    }

    #[test]
    fn a_file_that_is_cut_or_changed_is_noticed_and_never_harms(
        file in file(), cut in any::<prop::sample::Index>(), noise in text()
    ) {
        let text = file.to_text();
        let mut at = cut.index(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let cut = text[..at].trim_end();
        if let (Ok((_, problem)), true) = (File::parse(cut), cut != text.trim_end()) {
            prop_assert!(problem.is_some());
        }
        let _ = File::parse(&format!("{}{noise}{}", &text[..at], &text[at..]));
    }

    #[test]
    fn explaining_is_total(files in vec(file(), 1..4), all in any::<bool>()) {
        let files = files.into_iter().enumerate().map(|(index, file)| (index.to_string(), file.to_text()));
        let explained = explain(files, &Options { all, ..Options::default() });
        let text = explained.expect("files that can be read").text;
        prop_assert!(text.starts_with("First cause") || text.starts_with("No failure"), "{}", text);
    }
}
