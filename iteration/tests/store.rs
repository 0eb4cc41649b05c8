//! The client and the server together, and each of them with an end that does not behave.

use pccl_iteration::{MemoryStore, ServerConfig, Store, StoreError, StoreServer, TcpStoreClient};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn local() -> ServerConfig {
    ServerConfig { listen: "127.0.0.1:0".into(), ..ServerConfig::default() }
}

fn serve(config: ServerConfig) -> (StoreServer, TcpStoreClient) {
    let server = StoreServer::launch(config).unwrap();
    let client = TcpStoreClient::connect(&server.local_addr().to_string(), soon()).unwrap();
    (server, client)
}

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// Checks the calls that any store does.
fn check_store(store: &(impl Store + ?Sized)) {
    assert_eq!(store.get("k", soon()).unwrap(), None);
    store.set("k", b"v", soon()).unwrap();
    store.set("empty", b"", soon()).unwrap();
    assert_eq!(store.get("k", soon()).unwrap().unwrap(), b"v");
    assert_eq!(store.get("empty", soon()).unwrap().unwrap(), b"");
    let large = vec![7; 5_000_000];
    store.set("large", &large, soon()).unwrap();
    assert_eq!(store.get("large", soon()).unwrap().unwrap(), large);
    assert_eq!((store.add("n", 5, soon()).unwrap(), store.add("n", -7, soon()).unwrap()), (5, -2));
    assert_eq!(store.compare_set("c", b"x", b"y", soon()).unwrap(), b"x");
    assert_eq!(store.get("c", soon()).unwrap(), None);
    assert_eq!(store.compare_set("c", b"", b"a", soon()).unwrap(), b"a");
    assert_eq!(store.compare_set("c", b"b", b"z", soon()).unwrap(), b"a");
    store.append("a", b"x", soon()).unwrap();
    store.append("a", b"y", soon()).unwrap();
    let all = store.get_all(&keys(&["a", "missing", "n"]), soon()).unwrap();
    assert_eq!(all, [Some(b"xy".to_vec()), None, Some(b"-2".to_vec())]);
    assert_eq!(
        store.get_all(&keys(&["a", "k"]), soon()).unwrap(),
        [Some(b"xy".to_vec()), Some(b"v".to_vec())]
    );
    assert_eq!(store.get_all(&[], soon()).unwrap(), Vec::<Option<Vec<u8>>>::new());
    let many: Vec<String> =
        (0..1500).map(|i| if i % 500 == 1 { "n" } else { "missing" }.to_owned()).collect();
    let all = store.get_all(&many, soon()).unwrap();
    assert!(all.iter().zip(&many).all(|(value, key)| value.is_some() == (key == "n")), "{all:?}");
    assert_eq!(all[1001].as_deref(), Some(b"-2".as_slice()));
    assert!(store.check(&keys(&["a", "k"]), soon()).unwrap());
    assert!(!store.check(&keys(&["a", "missing"]), soon()).unwrap());
    assert!(store.delete("k", soon()).unwrap() && !store.delete("k", soon()).unwrap());
    let began = Instant::now();
    assert!(!store.wait(&keys(&["a", "later"]), began + Duration::from_millis(100)).unwrap());
    assert!(began.elapsed() >= Duration::from_millis(100));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&keys(&["later", "a"]), soon()).unwrap());
        // A wait holds up nobody else.
        store.set("later", b"1", soon()).unwrap();
        assert!(waiting.join().unwrap());
    });
    assert!(matches!(store.set(&"k".repeat(9000), b"", soon()), Err(StoreError::Refused(_))));
    assert!(matches!(store.set("k", &vec![0; 9_000_000], soon()), Err(StoreError::Refused(_))));
}

#[test]
fn stores_do_the_same() {
    check_store(&MemoryStore::new());
    let (_server, client) = serve(local());
    check_store(&client);
    assert_eq!(client.num_keys(soon()).unwrap(), 6);
}

#[test]
fn the_bytes_are_those_of_torch() {
    let server = StoreServer::launch(local()).unwrap();
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    let hex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    };
    // Captured between a client and a server of PyTorch.
    for (request, reply) in [
        ("00 cef7853c 0d 7f530000", "7f530000"),
        ("01 0200000000000000 2f6b 0100000000000000 76", ""),
        ("06 0100000000000000 0200000000000000 2f6b", "00"),
        ("03 0200000000000000 2f6b", "0100000000000000 76"),
        ("04 0200000000000000 2f6e 0500000000000000", "0500000000000000"),
        ("02 0200000000000000 2f63 0000000000000000 0100000000000000 41", "0100000000000000 41"),
        ("12 0400000000000000 2f626172 0100000000000000", "00"),
        // A wait that its own connection ends, and one that is cancelled.
        ("06 0100000000000000 0200000000000000 2f77 01 0200000000000000 2f77 0000000000000000", "00"),
        ("06 0100000000000000 0200000000000000 2f78 0c", "01"),
    ] {
        stream.write_all(&hex(request)).unwrap();
        let mut got = vec![0; hex(reply).len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, hex(reply), "{request}");
    }
}

#[test]
fn hostile_bytes_close_one_connection_and_harm_nobody() {
    let config =
        ServerConfig { handshake_timeout: Duration::from_millis(300), max_bytes: 1 << 20, ..local() };
    let (server, client) = serve(config);
    client.set("text", b"no number", soon()).unwrap();
    let hello = [0, 0xce, 0xf7, 0x85, 0x3c];
    let mut bad: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 1, 2, 3, 4],
        vec![13, 0, 0, 0, 0],
        [&hello[..], &[19]].concat(),
        [&hello[..], &[3], &u64::MAX.to_le_bytes()].concat(),
        [&hello[..], &[10], &u64::MAX.to_le_bytes()].concat(),
        // An addition to a text.
        [&hello[..], &[4], &5_u64.to_le_bytes(), b"/text", &1_u64.to_le_bytes()].concat(),
        // Two waits at once.
        [&hello[..], &[6], &1_u64.to_le_bytes(), &1_u64.to_le_bytes(), b"x"].concat().repeat(2),
        // More than the store may hold.
        [&hello[..], &[1], &1_u64.to_le_bytes(), b"x", &2_000_000_u64.to_le_bytes(), &vec![0; 2_000_000]]
            .concat(),
        // Nothing at all, until its time is over.
        Vec::new(),
        vec![0, 0xce],
    ];
    let mut random = 1_u64;
    for _ in 0..200 {
        let mut noise = hello.to_vec();
        for _ in 0..random % 60 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise.push((random >> 40) as u8 % 20);
        }
        bad.push(noise);
    }
    for (i, bytes) in bad.iter().enumerate() {
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        let sent = stream.write_all(bytes);
        if i < 11 {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            // Closed, with or without what was not read.
            let end = stream.read_to_end(&mut Vec::new());
            assert!(
                sent.is_err()
                    || end.is_ok()
                    || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
            );
        }
    }
    assert_eq!(client.get("text", soon()).unwrap().unwrap(), b"no number");
    assert!(matches!(client.add("text", 1, soon()), Err(StoreError::Uncertain { call: "add", .. })));
    assert_eq!(client.add("n", 1, soon()).unwrap(), 1);
}

#[test]
fn one_that_takes_no_answers_holds_up_nobody() {
    let (server, client) = serve(ServerConfig { max_buffer_bytes: 64 << 20, ..local() });
    client.set("v", &vec![1; 1 << 20], soon()).unwrap();
    let mut greedy = TcpStream::connect(server.local_addr()).unwrap();
    greedy.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c]).unwrap();
    let ask = [&[3][..], &2_u64.to_le_bytes(), b"/v"].concat();
    greedy.write_all(&ask.repeat(1000)).unwrap();
    for _ in 0..100 {
        assert_eq!(client.get("v", soon()).unwrap().unwrap().len(), 1 << 20);
    }
    // All answers are there once they are read.
    let mut answer = vec![0; 8 + (1 << 20)];
    for _ in 0..1000 {
        greedy.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], (1_u64 << 20).to_le_bytes());
    }
}

#[test]
fn one_client_holds_no_more_than_its_share_over_however_many_connections() {
    let (server, client) = serve(ServerConfig { max_client_bytes: 8 << 20, ..local() });
    // Each begins a command of 2 MiB and does not end it.
    let address = server.local_addr();
    let begin = |_| {
        let mut greedy = TcpStream::connect(address).unwrap();
        greedy.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let front =
            [&[0, 0xce, 0xf7, 0x85, 0x3c, 1][..], &2_u64.to_le_bytes(), b"/v", &(3_u64 << 20).to_le_bytes()];
        let sent = greedy.write_all(&[&front.concat()[..], &vec![7; 2 << 20]].concat());
        (greedy, sent)
    };
    let mut all: Vec<_> = (0..8).map(begin).collect();
    // The server closes what is over the share: at least two of these hold more than all may.
    let is_closed = |(greedy, sent): &mut (TcpStream, std::io::Result<()>)| {
        greedy.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        sent.is_err() || !greedy.read(&mut [0; 8]).is_err_and(waits)
    };
    let deadline = soon();
    while all.iter_mut().map(is_closed).filter(|is_closed| *is_closed).count() < 4 {
        assert!(std::time::Instant::now() < deadline, "it holds more than its share");
    }
    client.set("w", b"1", soon()).unwrap();
    assert_eq!(client.get("w", soon()).unwrap().unwrap(), b"1");
}

#[test]
fn a_store_listens_for_its_own_machine_unless_it_is_told_otherwise() {
    assert!(ServerConfig::default().listen.starts_with("127.0.0.1:"));
}

#[test]
fn a_file_keeps_what_clients_were_told() {
    let path = std::env::temp_dir().join(format!("pccl-store-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let config = ServerConfig { file: Some(path.clone()), ..local() };
    let (server, client) = serve(config.clone());
    client.set("k", b"v", soon()).unwrap();
    client.add("n", 41, soon()).unwrap();
    client.set("gone", b"1", soon()).unwrap();
    client.delete("gone", soon()).unwrap();
    client.compare_set("c", b"", b"one", soon()).unwrap();
    client.compare_set("c", b"one", b"two", soon()).unwrap();
    // Nobody else may use it meanwhile.
    let error = StoreServer::launch(config.clone()).unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let listen = server.local_addr().to_string();
    drop(server);
    // The end of the last write is missing.
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(&[0, 0, 0, 50, 1, 2, 3]);
    fs::write(&path, &bytes).unwrap();
    let server = StoreServer::launch(ServerConfig { listen, ..config.clone() }).unwrap();
    // The client comes back by itself.
    assert_eq!(client.get("k", soon()).unwrap().unwrap(), b"v");
    assert_eq!(client.add("n", 1, soon()).unwrap(), 42);
    assert_eq!(client.get("gone", soon()).unwrap(), None);
    assert_eq!(client.get("c", soon()).unwrap().unwrap(), b"two");
    drop(server);
    fs::write(&path, b"something else").unwrap();
    let error = StoreServer::launch(config).unwrap_err();
    assert!(error.to_string().contains("no file of a store"), "{error}");
    fs::remove_file(&path).unwrap();
}

#[test]
fn additions_are_never_made_twice() {
    // Takes the greeting, then closes as soon as an addition comes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let counting = thread::spawn(move || {
        let mut additions = 0;
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let mut hello = [0; 10];
            stream.read_exact(&mut hello).unwrap();
            stream.write_all(&hello[6..]).unwrap();
            let mut code = [0];
            while stream.read_exact(&mut code).is_ok() {
                if code[0] == 13 {
                    let mut nonce = [0; 4];
                    stream.read_exact(&mut nonce).unwrap();
                    stream.write_all(&nonce).unwrap();
                } else {
                    additions += 1;
                    break;
                }
            }
        }
        additions
    });
    let client = TcpStoreClient::connect(&address, soon()).unwrap();
    for call in ["add", "append"] {
        let error = match call {
            "add" => client.add("n", 1, soon()).unwrap_err(),
            _ => client.append("n", b"1", soon()).unwrap_err(),
        };
        assert!(matches!(&error, StoreError::Uncertain { call: name, .. } if *name == call), "{error}");
    }
    assert_eq!(counting.join().unwrap(), 2);
}

#[test]
fn nobody_there_is_said_by_the_deadline() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let began = Instant::now();
    let error = TcpStoreClient::connect(&address, began + Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }) && error.is_passing(), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30));
    // A listener that says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let error = TcpStoreClient::connect(&address, Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
}
