use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::super::tests::upstream;
use super::*;

/// A server that accepts three streams per connection, and announces this limit late.
async fn narrow(listener: TcpListener) {
    let mut kept = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::task::yield_now().await;
        // SETTINGS_MAX_CONCURRENT_STREAMS = 3
        stream
            .write_all(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3])
            .await
            .expect("sent");
        kept.push(stream);
    }
}

async fn stream(http2_pool: &Http2Pool, connector: &Connector) -> Result<StreamSlot, ForwardError> {
    match http2_pool.place(connector).await? {
        Placed::Stream(place) => Ok(place),
        Placed::Http1(_) => panic!("nothing is negotiated in clear text"),
    }
}

#[test]
fn a_burst_on_no_connection_keeps_to_the_servers_bound_and_opens_no_more_than_it_may() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let test = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let upstream = upstream(listener.local_addr().expect("bound"));
        tokio::task::spawn_local(narrow(listener));
        let connector = Connector::new(&upstream.servers[0], None, &upstream).expect("no TLS");
        let http2_pool = Http2Pool::new(60, 2);
        let mut places = Vec::new();
        for _ in 0..6 {
            places.push(stream(&http2_pool, &connector).await.expect("a place"));
        }
        let streams: Vec<usize> = http2_pool
            .open
            .borrow()
            .iter()
            .map(|lane| lane.streams.get())
            .collect();
        assert_eq!(streams, [3, 3]);
        assert!(
            matches!(
                stream(&http2_pool, &connector).await,
                Err(ForwardError::Overloaded)
            ),
            "that is the third"
        );
        places.pop();
        places.push(
            stream(&http2_pool, &connector)
                .await
                .expect("there is room again"),
        );
        assert_eq!(
            http2_pool.open.borrow().len(),
            2,
            "on a connection that was there"
        );
    };
    let in_time = async {
        tokio::time::timeout(Duration::from_secs(10), test)
            .await
            .expect("in time")
    };
    tokio::task::LocalSet::new().block_on(&runtime, in_time);
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_for_others_attempts_for_longer_than_one_may_take() {
    let upstream = upstream(([192, 0, 2, 1], 80).into());
    let connector = Connector::new(&upstream.servers[0], None, &upstream).expect("no TLS");
    let http2_pool = Http2Pool::new(60, 8);
    let _opening = http2_pool.opening.lock().await;
    let outcome =
        tokio::time::timeout(2 * connector.timeout, stream(&http2_pool, &connector)).await;
    assert!(matches!(
        outcome.expect("in time"),
        Err(ForwardError::Overloaded)
    ));
}
