//! The proxy between real sockets.

use super::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};
use tinysockets::preamble::Preamble;

/// More than anything here needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection through a proxy: the dialling end, the accepting end, and its name.
struct Through {
    proxy: Proxy,
    near: TcpStream,
    far: TcpStream,
    link: Link,
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn through() -> Through {
    let proxy = Proxy::start().expect("proxy");
    let place = proxy.open(3).expect("doors");
    let listener = TcpListener::bind((place.bind, place.ports.0)).expect("own address");
    let mut near = TcpStream::connect((place.shown, place.ports.0)).expect("door");
    let preamble = Preamble { from: 5, to: 6, ..Preamble::new(Role::Data) }.encode();
    near.write_all(&preamble).expect("preamble");
    let (mut far, _) = listener.accept().expect("the proxy dials");
    far.set_read_timeout(Some(PATIENCE)).expect("socket");
    near.set_read_timeout(Some(PATIENCE)).expect("socket");
    let mut first = vec![0; preamble.len()];
    far.read_exact(&mut first).expect("preamble");
    assert_eq!(first, preamble);
    let link = wait("the link is known", || proxy.links().first().copied());
    assert_eq!((link.from, link.to, link.listener), (5, 6, 3));
    Through { proxy, near, far, link }
}

fn until(seconds: u64) -> u64 {
    crate::os::monotonic_us() + seconds * 1_000_000
}

#[test]
fn bytes_go_both_ways_and_the_end_is_passed_on() {
    let Through { near, mut far, proxy, .. } = through();
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let sent = data.clone();
    let mut writer = near.try_clone().expect("socket");
    let thread = std::thread::spawn(move || {
        writer.write_all(&sent).expect("open");
        writer.shutdown(std::net::Shutdown::Write).expect("open");
    });
    let mut received = Vec::new();
    far.read_to_end(&mut received).expect("the end is passed on");
    assert!(received == data);
    thread.join().expect("writer");
    far.write_all(b"back").expect("the other way is open");
    drop(far);
    let mut answer = String::new();
    let mut near = near;
    near.read_to_string(&mut answer).expect("the end is passed on");
    assert_eq!(answer, "back");
    wait("the link is forgotten", || proxy.links().is_empty().then_some(()));
}

#[test]
fn a_reset_is_seen_at_both_ends() {
    let Through { mut near, mut far, proxy, link } = through();
    proxy.harm(vec![link.id], Harm::Reset);
    for stream in [&mut near, &mut far] {
        assert_eq!(stream.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_lost_segment_is_not_acknowledged_and_comes_when_the_loss_ends() {
    let Through { mut near, mut far, proxy, link } = through();
    proxy.harm(vec![link.id], Harm::Lose { way: Way::Forward, until_us: until(600) });
    near.write_all(b"lost").expect("the kernel takes it");
    far.set_read_timeout(Some(Duration::from_millis(500))).expect("socket");
    assert_eq!(far.read(&mut [0; 4]).expect_err("nothing arrives").kind(), ErrorKind::WouldBlock);
    // Lost one way only; and the sender's kernel knows that nothing was acknowledged.
    far.write_all(b"back").expect("open");
    let mut four = [0; 4];
    near.read_exact(&mut four).expect("the other way is open");
    proxy.heal();
    far.set_read_timeout(Some(PATIENCE)).expect("socket");
    far.read_exact(&mut four).expect("sent again");
    assert_eq!(&four, b"lost");
}

#[test]
fn what_is_due_passes_without_an_event_whatever_the_moment() {
    let Through { mut near, mut far, proxy, link } = through();
    // Among them those that end between a look at the sockets and the wait for the next event.
    for delay_us in 0..100 {
        proxy.harm(vec![link.id], Harm::Delay { way: Way::Forward, delay_us, until_us: until(600) });
        for byte in 0..30 {
            near.write_all(&[byte]).expect("open");
            let mut one = [0];
            far.read_exact(&mut one).expect("it arrives");
            assert_eq!(one, [byte]);
        }
    }
}

#[test]
fn a_flipped_bit_arrives_flipped() {
    let Through { mut near, mut far, proxy, link } = through();
    proxy.harm(vec![link.id], Harm::Flip { way: Way::Back, in_bytes: 1000 });
    let mut received = vec![0; 2000];
    far.write_all(&[0; 2000]).expect("open");
    near.read_exact(&mut received).expect("open");
    assert_eq!(received.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_ne!(received[1000], 0);
}

#[test]
fn doors_of_a_peer_that_has_gone_are_closed() {
    let Through { mut near, proxy, .. } = through();
    proxy.close(3);
    near.read_exact(&mut [0]).expect_err("closed");
    wait("the link is forgotten", || proxy.links().is_empty().then_some(()));
}
