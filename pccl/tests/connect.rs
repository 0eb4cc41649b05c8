//! How long `connect` tries, and what ends it.

use pccl::{Communicator, Error, Remedy};
use pccl_testkit::ports::free_port;
use std::{
    io::{Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};
use tinysockets::preamble::{PREAMBLE_BYTES, Refusal, Reply};

/// For what must not be waited for to its end.
const NEVER: Duration = Duration::from_secs(600);

fn peer(master: &str, patience: Duration) -> Communicator {
    let builder = Communicator::builder(master).first_ports(0, 0).connect_timeout(patience);
    builder.build().expect("valid settings")
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

/// The error of `connect` at a server that answers the preamble like this, every time.
fn answered(answer: &[u8], patience: Duration) -> (Error, usize) {
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let connects = scope.spawn(move || peer(&address, patience).connect().expect_err("no master"));
        let mut times = 0;
        listener.set_nonblocking(true).expect("a setting");
        while !connects.is_finished() {
            let Ok((mut stream, _)) = listener.accept() else {
                pccl_testkit::barrier::look_again();
                continue;
            };
            stream.set_nonblocking(false).expect("a setting");
            stream.read_exact(&mut [0; PREAMBLE_BYTES]).expect("a preamble");
            stream.write_all(answer).expect("it reads");
            times += 1;
        }
        (connects.join().expect("no panic"), times)
    })
}

#[test]
fn a_master_that_is_not_there_is_tried_until_the_time_is_over() {
    // Not one that the system has just given: another test might get it next.
    let address = format!("127.0.0.1:{}", free_port());
    for (master, cause) in
        [(address.as_str(), "connection refused"), ("no-such-host.invalid:1", "no-such-host")]
    {
        let (begin, patience) = (Instant::now(), Duration::from_millis(700));
        let error = peer(master, patience).connect().expect_err("nobody is there");
        assert!(begin.elapsed() >= patience, "{error} after {:?}", begin.elapsed());
        assert!(matches!(error, Error::ConnectFailed(_)) && error.remedy() == Remedy::Reconnect, "{error:?}");
        assert!(error.to_string().contains(cause), "{error}");
    }
}

#[test]
fn who_does_not_take_this_peer_is_not_asked_again() {
    let refused = |reason| Reply::Refused(reason).encode();
    for answer in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        &refused(Refusal::UnsupportedVersion),
        &refused(Refusal::WrongRun),
    ] {
        let (error, times) = answered(answer, NEVER);
        assert!(matches!(error, Error::Refused(_)) && error.remedy() == Remedy::GiveUp, "{error:?}");
        assert_eq!(times, 1);
    }
}

#[test]
fn a_master_that_is_going_away_or_has_no_room_is_tried_again() {
    let refused = |reason| Reply::Refused(reason).encode();
    for answer in [b"".as_slice(), &refused(Refusal::ShuttingDown), &refused(Refusal::Full)] {
        let (error, times) = answered(answer, Duration::from_secs(1));
        assert!(matches!(error, Error::ConnectFailed(_)), "{error:?}");
        assert!(times > 1, "{times}");
    }
}

#[test]
fn closing_ends_the_attempts() {
    let (listener, address) = listener();
    let comm = peer(&address, NEVER);
    std::thread::scope(|scope| {
        for recovers in [false, true] {
            let connects = scope.spawn({
                let comm = &comm;
                move || if recovers { comm.make_good(Remedy::Reconnect, 2) } else { comm.connect() }
            });
            // It has tried, and will again.
            drop(listener.accept().expect("it tries"));
            assert!(matches!(comm.world().global_size, 0) && !comm.is_connected());
            while !connects.is_finished() {
                comm.close();
            }
            assert_eq!(connects.join().expect("no panic"), Err(Error::NotConnected));
        }
    });
}

#[test]
fn two_threads_do_not_connect_at_the_same_time() {
    let (listener, address) = listener();
    let comm = peer(&address, NEVER);
    std::thread::scope(|scope| {
        let connects = scope.spawn(|| comm.connect());
        drop(listener.accept().expect("it tries"));
        assert!(matches!(comm.connect(), Err(Error::InvalidUsage(_))));
        comm.close();
        assert_eq!(connects.join().expect("no panic"), Err(Error::NotConnected));
    });
}
