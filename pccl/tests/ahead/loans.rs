//! Until when lent memory is read, by whomever.

use super::{BYTES, MIB, PATIENCE, content, master, peers, state_of, sync};
use pccl::{Communicator, Error, Status};
use pccl_protocol::{
    Beat, C2m, GroupId, Key, M2c, Name, P2p, Register, StateAnswer, StatePart, StateRequest, SyncId, limits,
};
use pccl_testkit::barrier::Barrier;
use std::{ops::Range, thread, time::Instant};
use tinysockets::{
    dial::dial_with_preamble,
    preamble::{Preamble, Role},
    stream::PacketStream,
};

/// Asks a peer for parts of what a sync has committed, as a newcomer does.
fn ask_for(status: &Status, of: &Communicator, sync: SyncId, parts: Range<u64>) -> PacketStream {
    let server = status.peers.iter().find(|peer| Some(peer.peer) == of.id()).expect("it is there");
    let preamble = Preamble {
        run: status.run.0,
        from: 1,
        to: server.peer.0,
        group: GroupId(0).0,
        connection_count: 1,
        ..Preamble::new(Role::State)
    };
    let deadline = Instant::now() + PATIENCE;
    let address = format!("127.0.0.1:{}", server.state_port).parse().expect("an address");
    let conn = dial_with_preamble(&address, &preamble, None, deadline).expect("it listens");
    let mut stream = PacketStream::new(conn, limits::MAX_PACKET_BYTES);
    for part in parts {
        let request = StateRequest { sync, key: Key::new("w"), part: StatePart::Mebibyte(part) };
        stream.send_bytes(&P2p::StateRequest(request).to_frame(), deadline).expect("sent");
    }
    stream
}

/// The next answer, unless the connection has ended.
fn next_answer(stream: &mut PacketStream) -> Option<StateAnswer> {
    let (kind, body) = stream.recv_packet(Instant::now() + PATIENCE).ok()?;
    match P2p::from_frame(kind, &body) {
        Ok(P2p::StateAnswer(answer)) => Some(answer),
        other => panic!("{other:?}"),
    }
}

fn ask(status: &Status, of: &Communicator, sync: SyncId) -> StateAnswer {
    next_answer(&mut ask_for(status, of, sync, 0..1)).expect("an answer")
}

#[test]
fn nobody_reads_what_was_lent_when_the_loan_is_over() {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let mut tensor = content(1);
    let mut state = state_of(&mut tensor, 1);
    sync(&comm, &mut state).expect("synced");
    let status = comm.status().expect("the master is there");
    let given =
        |sync| matches!(ask(&status, &comm, SyncId(sync)), StateAnswer::Bytes(bytes) if bytes == MIB as u64);
    // For one that it does not know yet it would wait.
    let lent = comm.lend_state(&state, || (0..9).find(|sync| given(*sync)));
    let lent = lent.expect("it ran").expect("the sync is lent");
    assert!(!given(lent));
    // One that is ended by the next sync.
    comm.lend_state(&state, || {
        assert!(given(lent));
        sync(&comm, &mut state_of(&mut content(3), 2)).expect("synced");
        assert!(!given(lent));
    })
    .expect("it ran");
    let error = comm.lend_state(&state, || ()).expect_err("another state was committed");
    assert!(matches!(&error, Error::InvalidUsage(text) if text.contains("tensor w has changed")), "{error}");
}

#[test]
fn a_copy_is_lent_until_something_else_is_committed() {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let mut tensor = content(1);
    let mut revision = 1;
    let mut commit = |tensor: &mut [u8], snapshot: bool| {
        let mut state = state_of(tensor, revision);
        sync(&comm, &mut state).expect("synced");
        revision += 1;
        if snapshot {
            comm.lend_snapshot(&state).map(drop).expect("lent")
        }
    };
    commit(&mut tensor, true);
    let status = comm.status().expect("the master is there");
    let is_lent = |sync| matches!(ask(&status, &comm, SyncId(sync)), StateAnswer::Bytes(_));
    // For one that it does not know yet it would wait.
    let first = (0..9).find(|sync| is_lent(*sync)).expect("one is lent");
    // The same again, then another one, and a copy of that.
    commit(&mut tensor, false);
    assert!(!is_lent(first) && is_lent(first + 1));
    tensor[MIB] ^= 1;
    commit(&mut tensor, false);
    assert!((first..=first + 2).all(|sync| !is_lent(sync)));
    commit(&mut tensor, true);
    assert!(!is_lent(first + 2) && is_lent(first + 3));
    comm.end_loan();
    assert!(!is_lent(first + 3));
}

#[test]
fn memory_that_is_there_for_good_is_lent_until_that_is_ended() {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let mut state = state_of(Box::leak(content(1).into_boxed_slice()), 1);
    sync(&comm, &mut state).expect("synced");
    let status = comm.status().expect("the master is there");
    let is_lent = |sync| matches!(ask(&status, &comm, SyncId(sync)), StateAnswer::Bytes(_));
    let loan = comm.lend_detached(state).expect("lent");
    // For one that it does not know yet it would wait.
    let lent = (0..9).find(|sync| is_lent(*sync)).expect("it is lent");
    let error = comm.lend_detached(state_of(Box::leak(content(1).into_boxed_slice()), 1));
    assert!(matches!(error, Err(Error::InvalidUsage(_))), "two loans");
    let state = loan.end();
    assert!(!is_lent(lent));
    drop(comm.lend_detached(state).expect("lent"));
    assert!(!is_lent(lent));
}

/// Peers that fetch at the same time.
const READERS: usize = 3;
/// So much is read at a time.
const READ_BYTES: usize = 4096;
/// How often something is lent and taken back.
const ROUNDS: u8 = 20;

/// Those who fetch what is lent.
struct Readers {
    /// All of them are in the middle of a part.
    begun: Barrier,
    /// The memory that was lent was taken back, and written.
    over: Barrier,
}

impl Readers {
    fn new() -> Self {
        Self { begun: Barrier::new(READERS + 1), over: Barrier::new(READERS + 1) }
    }

    /// Reads what was asked for, all of whose bytes are `byte`: the rest of it at once, or when it is over. Returns how
    /// many bytes came, and the first that is another one.
    fn read(&self, mut stream: PacketStream, byte: u8, goes_on: bool) -> (usize, Option<u8>) {
        let (mut buffer, mut got, mut wrong) = ([0; READ_BYTES], 0, None);
        while let Some(StateAnswer::Bytes(bytes)) = next_answer(&mut stream).filter(|_| got < BYTES) {
            let mut left = usize::try_from(bytes).expect("a part of a tensor");
            while left > 0 {
                let some = &mut buffer[..left.min(READ_BYTES)];
                if stream.recv_exact(some, Instant::now() + PATIENCE).is_err() {
                    break;
                }
                wrong = wrong.or_else(|| some.iter().find(|one| **one != byte).copied());
                if got == 0 {
                    self.begun.wait();
                    if !goes_on {
                        self.over.wait();
                    }
                }
                (left, got) = (left - some.len(), got + some.len());
            }
        }
        if goes_on {
            self.over.wait();
        }
        (got, wrong)
    }
}

/// The state that is lent is taken back and written while it is read: the caller's memory, or a copy.
fn take_back(is_copy: bool) {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let status = comm.status().expect("the master is there");
    let mut tensor = vec![0_u8; BYTES];
    let commit = |tensor: &mut [u8], byte: u8| {
        tensor.fill(byte);
        let mut state = state_of(tensor, byte.into());
        sync(&comm, &mut state).expect("synced");
        if is_copy {
            comm.lend_snapshot(&state).expect("lent");
        }
    };
    commit(&mut tensor, 1);
    let given = |sync: &u64| matches!(ask(&status, &comm, SyncId(*sync)), StateAnswer::Bytes(_));
    // For one that it does not know yet it would wait.
    let first = comm.lend_state(&state_of(&mut tensor, 1), || (0..9).find(given));
    let first = first.expect("it ran").expect("the sync is lent");
    let mut broken_off = 0;
    for round in 1..=ROUNDS {
        let readers = &Readers::new();
        let got = thread::scope(|scope| {
            let state = state_of(&mut tensor, round.into());
            let threads = comm.lend_state(&state, || {
                let sync = SyncId(first + u64::from(round) - 1);
                let read = |number| {
                    let stream = ask_for(&status, &comm, sync, 0..BYTES.div_ceil(MIB) as u64);
                    scope.spawn(move || readers.read(stream, round, number == 0))
                };
                let threads: Vec<_> = (0..READERS).map(read).collect();
                readers.begun.wait();
                threads
            });
            drop(state);
            commit(&mut tensor, round + 1);
            readers.over.wait();
            let threads = threads.expect("lent").into_iter();
            threads.map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(got.iter().all(|(_, wrong)| wrong.is_none()), "read after it was taken back: {got:?}");
        broken_off += got.iter().filter(|(got, _)| *got < BYTES).count();
    }
    assert!(broken_off > 0, "nothing was taken back while it was read");
}

#[test]
fn what_is_taken_back_while_it_is_read_is_not_read_any_more() {
    take_back(false);
}

#[test]
fn a_copy_that_is_written_while_it_is_read_is_not_read_any_more() {
    take_back(true);
}

#[test]
fn a_program_may_lend_as_often_as_it_likes() {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let mut tensor = [7_u8; 16];
    let mut state = state_of(&mut tensor, 1);
    sync(&comm, &mut state).expect("synced");
    // More than twice of what a master takes at once.
    for _ in 0..5000 {
        comm.lend_state(&state, || {}).expect("nobody minds");
    }
    comm.status().expect("still in the run");
}

#[test]
fn who_sends_more_than_it_may_is_read_more_slowly_and_stays() {
    let (_master, address) = master();
    let address = address.parse().expect("an address");
    let deadline = Instant::now() + PATIENCE;
    let conn =
        dial_with_preamble(&address, &Preamble::new(Role::Control), None, deadline).expect("it listens");
    let mut stream = PacketStream::new(conn, limits::MAX_PACKET_BYTES);
    let mut send =
        |packet: C2m| stream.send_bytes(&packet.to_frame(), deadline).expect("the master is there");
    send(C2m::Register(Register {
        group: GroupId(0),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 1,
        state_port: 2,
        pool_connections: 1,
        name: Name::new("fast"),
        previous: None,
        formed: true,
        alone: false,
        resume: None,
        outbound_only: Some(true),
        site: Name::default(),
    }));
    // The master takes 1024 at once, and then 16 per second.
    let (at_once, more) = (1024, 24);
    let began = Instant::now();
    (1..=at_once + more).for_each(|sequence| send(C2m::Beat(Beat { sequence, ..Beat::default() })));
    loop {
        let (kind, body) = stream.recv_packet(deadline).expect("it is not dropped");
        match M2c::from_frame(kind, &body).expect("a packet") {
            M2c::Echo(echo) if echo.sequence == at_once + more => break,
            M2c::Kicked(reason) => panic!("{reason}"),
            _ => {}
        }
    }
    assert!(began.elapsed().as_millis() >= 1400, "{:?}", began.elapsed());
}
