//! The news that a collective has succeeded comes after the news that a member is gone.

use super::PATIENCE;
use pccl_protocol::M2c;
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use tinysockets::{preamble::Reply, wire::FrameParser};

/// Forwards one connection to the master. Once `holds` is set, an outcome waits for the next plan.
pub(super) fn proxy(master: SocketAddr, holds: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(master).expect("the master listens");
        let (mut from_client, mut to_server) =
            (client.try_clone().expect("a descriptor"), server.try_clone().expect("a descriptor"));
        thread::spawn(move || io::copy(&mut from_client, &mut to_server));
        // It ends with either end.
        let _ = forward(server, client, &holds);
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, holds: &AtomicBool) -> io::Result<()> {
    from.set_read_timeout(Some(PATIENCE))?;
    let mut reply = vec![0; Reply::Accepted.encode().len()];
    from.read_exact(&mut reply)?;
    to.write_all(&reply)?;
    let (mut parser, mut buffer) = (FrameParser::new(1 << 20), [0; 4096]);
    let mut held: Vec<M2c> = Vec::new();
    loop {
        let bytes = from.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        parser.feed(&buffer[..bytes]);
        while let Some((kind, body)) = parser.next_frame().map_err(io::Error::other)? {
            let packet = M2c::from_frame(kind, body).map_err(io::Error::other)?;
            let is_plan = matches!(packet, M2c::GroupPlan(_));
            if matches!(packet, M2c::Outcome(_)) && holds.load(Ordering::SeqCst) {
                held.push(packet);
                continue;
            }
            to.write_all(&packet.to_frame())?;
            if is_plan {
                held.drain(..).try_for_each(|packet| to.write_all(&packet.to_frame()))?;
            }
        }
    }
}
