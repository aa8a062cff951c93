use super::{Address, Listen, bind};

#[test]
fn port_zero_becomes_one_port_for_all_workers() {
    let listen = Listen {
        address: Address::Tcp(([127, 0, 0, 1], 0).into()),
        tls: None,
    };
    let bound = bind(&[listen], 3).expect("a free port");
    assert_eq!(bound[0].sockets.len(), 3);
    let Address::Tcp(address) = bound[0].address else {
        panic!("bound to TCP")
    };
    assert_ne!(address.port(), 0);
    for socket in &bound[0].sockets {
        let super::Listener::Tcp(socket) = socket else {
            panic!("bound to TCP")
        };
        assert_eq!(socket.local_addr().expect("an address"), address);
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let listen = [Listen {
        address: Address::Unix(directory.path().join("s")),
        tls: None,
    }];
    drop(bind(&listen, 2).expect("nothing in the way"));
    let _live = bind(&listen, 2).expect("the first one is gone");
    let error = bind(&listen, 1)
        .expect_err("the second one lives")
        .to_string();
    assert!(error.contains("another process listens there"), "{error}");

    let file = directory.path().join("file");
    std::fs::write(&file, "precious").expect("written");
    assert!(
        bind(
            &[Listen {
                address: Address::Unix(file.clone()),
                tls: None
            }],
            1
        )
        .is_err()
    );
    assert_eq!(
        std::fs::read_to_string(file).expect("still there"),
        "precious"
    );
}
