//! Somebody who has the run key, and not the ticket: neither gets in at a peer nor answers in its place.

use crate::link_support::{hear, knock_at};
use tinysockets::{
    handshake::{Door, Heard, Knock, KnockError, Visit},
    key::{AcceptedKeys, RunKey, RunKeys, SecretKey},
    preamble::{Preamble, Refusal, Role},
    ticket::{Authority, Lock},
};

fn key(number: u8) -> RunKey {
    RunKey::from_bytes([number; 32])
}

fn keys(used: u8, second: Option<u8>) -> RunKeys {
    RunKeys::new(AcceptedKeys { used: key(used), second: second.map(key) })
}

/// Why a door refuses whoever comes with this; nothing if it does not.
fn refused(lock: &Lock, preamble: &Preamble, secret: &SecretKey) -> Option<Refusal> {
    let (_, hello) = Knock::new(preamble, Some(secret)).unwrap();
    match knock_at(&mut Door::new(Some(lock.clone())), &hello) {
        Visit::Answer(_) => None,
        Visit::Unwanted(reason, _) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ticket_opens_the_door_that_it_was_made_for_and_only_by_its_preamble() {
    let authority = Authority::draw().unwrap();
    let lock = |peer| Lock::of_peer(keys(1, None), authority.service_key(peer));
    let meant =
        Preamble { run: 5, from: 6, to: 7, epoch: 3, link_generation: 2, ..Preamble::new(Role::Data) };
    let ticket = authority.service_key(7).ticket(&meant);
    assert_eq!(refused(&lock(7), &meant, &ticket), None);
    assert_eq!(
        refused(&lock(7), &Preamble { connection_index: 3, ..meant }, &ticket),
        None,
        "of the same pool"
    );
    for other in [
        Preamble { from: 8, ..meant },
        Preamble { role: Role::State, ..meant },
        Preamble { role: Role::Probe, ..meant },
        Preamble { epoch: 4, ..meant },
        // For state and probes, a later end.
        Preamble { link_generation: u64::MAX, ..meant },
        Preamble { run: 4, ..meant },
    ] {
        assert_eq!(refused(&lock(7), &other, &ticket), Some(Refusal::WrongTicket), "{other:?}");
    }
    assert_eq!(refused(&lock(8), &meant, &ticket), Some(Refusal::WrongTicket), "another peer");
    for role in [Role::Data, Role::State, Role::Probe] {
        let preamble = Preamble { role, ..meant };
        assert_eq!(refused(&lock(7), &preamble, key(1).secret()), Some(Refusal::WrongTicket));
    }
    let check = |from| Preamble { role: Role::Check, from, ..meant };
    assert_eq!(refused(&lock(7), &check(6), key(1).secret()), None, "nothing follows from a check");
    assert_eq!(refused(&lock(7), &check(0), key(1).secret()), Some(Refusal::WrongTicket), "not the master");
    assert_eq!(refused(&lock(7), &check(0), &authority.service_key(7).ticket(&check(0))), None);
}

#[test]
fn nobody_answers_in_the_place_of_the_peer_that_is_called() {
    let authority = Authority::draw().unwrap();
    let meant = Preamble { from: 6, to: 7, ..Preamble::new(Role::Data) };
    let ticket = authority.service_key(7).ticket(&meant);
    // An impostor that has the run key, and one that has also heard a handshake with the peer that was meant.
    let (_, elsewhere) = Knock::new(&meant, Some(key(1).secret())).unwrap();
    let mut impostor = Door::new(Some(key(1).into()));
    let Visit::Answer(answer) = knock_at(&mut impostor, &elsewhere) else { panic!("it has the run key") };
    let (mut knock, hello) = Knock::new(&meant, Some(&ticket)).unwrap();
    assert_eq!(hear(&mut knock, &answer).unwrap_err(), KnockError::Proof);
    let own = Lock::of_peer(keys(1, None), authority.service_key(7));
    let Visit::Answer(answer) = knock_at(&mut Door::new(Some(own.clone())), &hello) else {
        panic!("a ticket")
    };
    let (mut knock, hello) = Knock::new(&meant, Some(&ticket)).unwrap();
    assert_eq!(hear(&mut knock, &answer).unwrap_err(), KnockError::Proof, "an answer to another one");
    let (mut knock, again) = (Knock::new(&meant, Some(&ticket)).unwrap().0, hello);
    let Visit::Answer(answer) = knock_at(&mut Door::new(Some(own)), &again) else { panic!("a ticket") };
    assert_eq!(hear(&mut knock, &answer).unwrap_err(), KnockError::Proof, "a repeated first message");
}

#[test]
fn two_run_keys_are_accepted_while_one_takes_the_place_of_the_other() {
    let run = keys(1, None);
    let lock = Lock::of_master(run.clone());
    let control = Preamble::new(Role::Control);
    let is_refused = |number: u8| refused(&lock, &control, key(number).secret());
    let wrong = Some(Refusal::WrongKey);
    assert_eq!([1, 2, 3].map(is_refused), [None, wrong, wrong]);
    run.replace(AcceptedKeys { used: key(2), second: Some(key(1)) });
    assert_eq!([1, 2, 3].map(is_refused), [None, None, wrong]);
    // Each of them to the end.
    for number in [1, 2] {
        let (mut knock, hello) = Knock::new(&control, Some(key(number).secret())).unwrap();
        let mut door = Door::new(Some(lock.clone()));
        let Visit::Answer(answer) = knock_at(&mut door, &hello) else { panic!("a key that is accepted") };
        let Heard::Proven(proof, _) = hear(&mut knock, &answer).unwrap() else { panic!("it has answered") };
        assert!(matches!(knock_at(&mut door, &proof), Visit::Known(_, Some(_))));
    }
    run.replace(key(2).into());
    assert_eq!([1, 2, 3].map(is_refused), [wrong, None, wrong]);
}
