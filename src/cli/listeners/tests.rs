//! Gateways with several addresses.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::Value;
use socket2::{SockAddr, Socket, Type};

use super::*;

fn gateway(places: Vec<Place>, timeout: u64) -> Gateway {
    looked_up(timeout, move || Ok(places.clone()))
}

/// A gateway whose name has these addresses.
fn looked_up(
    timeout: u64,
    look_up: impl Fn() -> Result<Vec<Place>, String> + Send + Sync + 'static,
) -> Gateway {
    Gateway {
        name: "it".to_owned(),
        look_up: Box::new(move |_, _| look_up()),
        found: Mutex::default(),
        timeout: Duration::from_millis(timeout),
    }
}

/// A listener whose backlog takes connections and that never responds.
fn silent() -> (TcpListener, Place) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let place = Place::Tcp(listener.local_addr().expect("its address"));
    (listener, place)
}

/// An address at which nothing listens.
fn closed() -> Place {
    silent().1
}

/// A listener whose backlog is full, with the connections in it.
fn full(address: &SockAddr) -> (Socket, Vec<Socket>) {
    let socket = || Socket::new(address.domain(), Type::STREAM, None).expect("a socket");
    let listener = socket();
    listener.bind(address).expect("a free address");
    listener.listen(0).expect("a listener");
    let address = listener.local_addr().expect("its address");
    let waiting = (0..8).map(|_| {
        let client = socket();
        client.set_nonblocking(true).expect("a socket");
        // The backlog takes one or two of them.
        let _ = client.connect(&address);
        client
    });
    let waiting = waiting.collect();
    (listener, waiting)
}

#[test]
fn gateway_that_is_silent_at_one_address_is_asked_at_no_other_after_its_time() {
    let (first, one) = silent();
    let (second, other) = silent();
    let gateway = gateway(vec![one, other], 50);
    assert!(gateway.text("/readyz").is_err());
    let read = gateway.get::<Value>("/readyz");
    assert_eq!(read, Err("no response within 50 ms".to_owned()));
    assert!(first.accept().is_ok() && first.accept().is_ok());
    let accepted = second.accept().map(drop);
    let none = accepted.expect_err("its time was over").kind();
    assert_eq!(none, io::ErrorKind::WouldBlock);
}

#[test]
fn gateway_whose_first_address_takes_no_connection_is_asked_at_the_next_one() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let (listener, _waiting) = full(&any.into());
    let lost = listener.local_addr().expect("its address");
    let lost = Place::Tcp(lost.as_socket().expect("of TCP"));
    let (second, other) = silent();
    let gateway = gateway(vec![lost, other], 200);
    let read = gateway.get::<Value>("/readyz");
    let read = read.expect_err("no response");
    // Only the second one had until the end of the time.
    assert!(read.contains("no response in time; "), "{read}");
    assert!(read.ends_with("no response within 200 ms"), "{read}");
    assert!(second.accept().is_ok());
}

#[test]
fn gateway_whose_addresses_all_take_no_connection_has_one_reason() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let (listener, _waiting) = full(&any.into());
    let lost = listener.local_addr().expect("its address");
    let lost = Place::Tcp(lost.as_socket().expect("of TCP"));
    let read = gateway(vec![lost.clone(), lost], 100).get::<Value>("/readyz");
    assert_eq!(read, Err("no response in time".to_owned()));
}

#[test]
fn gateway_whose_name_is_not_found_says_so_when_it_is_asked() {
    // No name has a label of more than 63 bytes, so that no server is asked for it.
    let names = [format!("{}:9180", "a".repeat(64)), "127.0.0.1:1".to_owned()];
    let asked = asked(&names, 20_000, &ConfigFile::option(None));
    let asked = asked.ok().expect("both may be listeners");
    let reasons = asked.iter().map(|one| one.get::<Value>("/readyz"));
    let [lost, near] = reasons.collect::<Vec<_>>().try_into().expect("two");
    let why = lost.expect_err("it has no address");
    assert!(
        why.starts_with("no response: its name is not found: "),
        "{why}"
    );
    assert!(near.expect_err("it is closed").starts_with("no response: "));
    assert!(asked[0].text("/readyz").is_err());
}

#[test]
fn gateway_whose_unix_socket_takes_no_connection_is_given_up_after_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("admin.sock");
    let (_listener, _waiting) = full(&SockAddr::unix(&path).expect("a path"));
    let (send, read) = mpsc::channel();
    let gateway = gateway(vec![Place::Unix(path)], 50);
    // Without a time limit the thread waits as long as the listener is there.
    std::thread::spawn(move || send.send(gateway.get::<Value>("/readyz")));
    let read = read.recv_timeout(Duration::from_secs(10));
    let read = read.expect("the connection has a time limit");
    assert_eq!(read, Err("no response within 50 ms".to_owned()));
}

#[test]
fn change_that_no_address_takes_has_the_reason_of_each() {
    let far = Place::Tcp("192.0.2.5:9180".parse().expect("an address"));
    let near = closed();
    let token = Token::of_the_environment("secret");
    let places = vec![near.clone(), far];
    let changed = gateway(places, 1_000).change::<Value>("PUT", "/", Some(&token), "{}");
    let why = changed.expect_err("no address takes it");
    assert!(why.contains(&format!("{near}: no response: ")), "{why}");
    assert!(
        why.contains("; 192.0.2.5:9180: nothing was sent: "),
        "{why}"
    );
    let twice = vec![near.clone(), near];
    let changed = gateway(twice, 1_000).change::<Value>("PUT", "/", Some(&token), "{}");
    let why = changed.expect_err("no address takes it");
    assert_eq!(why.matches("no response").count(), 1, "{why}");
}

/// A resolver that names several processes in another order each time.
#[test]
fn gateway_with_several_addresses_is_asked_at_one_process_again() {
    let (first, one) = silent();
    let (second, other) = silent();
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let gateway = looked_up(20, move || {
        let mut places = vec![one.clone(), other.clone()];
        places.rotate_left(counted.fetch_add(1, Ordering::Relaxed) % 2);
        Ok(places)
    });
    for _ in 0..3 {
        assert!(gateway.get::<Value>("/").is_err());
        assert!(first.accept().is_ok());
        assert!(second.accept().is_err(), "another process");
    }
    assert_eq!(looks.load(Ordering::Relaxed), 1);
}

/// Its process has moved: the address that was found takes no connection.
#[test]
fn gateway_whose_addresses_take_no_connection_is_looked_up_again() {
    let (listener, place) = silent();
    let looks = AtomicUsize::new(0);
    let gateway = looked_up(20, move || match looks.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(vec![closed()]),
        _ => Ok(vec![place.clone()]),
    });
    for _ in 0..2 {
        assert!(gateway.get::<Value>("/").is_err());
    }
    assert!(listener.accept().is_ok());
}

/// Its backlog takes the connection.
#[test]
fn gateway_that_is_silent_is_told_in_words_and_of_a_change_that_it_may_have_been_made() {
    let (_silent, place) = silent();
    let gateway = gateway(vec![place], 20);
    let changed = gateway.change::<Value>("PUT", "/", None, "{}");
    let words = "no response within 20 ms; the change may have been made";
    assert_eq!(changed, Err(words.to_owned()));
    assert_eq!(within(Duration::from_secs(5)), "within 5 s");
}

/// A gateway that sends a byte now and then, and never a whole response.
#[test]
fn gateway_that_responds_bit_by_bit_is_given_up_after_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = Place::Tcp(listener.local_addr().expect("its address"));
    let slow = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        // Without a limit for the whole request the client waits for all of them.
        let sent = (0..200).take_while(|_| {
            std::thread::sleep(Duration::from_millis(10));
            stream.write_all(b"H").is_ok()
        });
        sent.count()
    });
    let late = gateway(vec![place], 100).get::<Value>("/readyz");
    assert_eq!(late, Err("no response within 100 ms".to_owned()));
    assert!(slow.join().expect("no panic") < 200);
}

#[test]
fn gateway_addresses_may_have_blanks_around_their_commas() {
    let names = ["127.0.0.1:1 ", " localhost:2"].map(str::to_owned);
    let asked = asked(&names, 1_000, &ConfigFile::option(None));
    let asked = asked.ok().expect("both may be listeners");
    let names: Vec<&str> = asked.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["127.0.0.1:1", "localhost:2"]);
}

/// A response of a public listener, which is no document of the admin API.
#[test]
fn gateway_document_without_a_format_may_come_from_another_listener() {
    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Document {
        format: u32,
    }
    let read = document_of::<Document>(200, "{}");
    let why = read.expect_err("it lacks the format");
    assert!(why.contains("is this an admin listener"), "{why}");
}
