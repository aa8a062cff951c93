//! Upstreams that speak HTTP/2: the real NGINX, which closes its connections in order.

use std::collections::BTreeMap;
use std::path::Path;

use crate::encrypted::{authority, issue};
use crate::harness::{Gateway, Nginx, Upstream};

/// Has many clients send POSTs, each with a name of its own; every one is to be answered, and processed once.
fn assert_every_post_is_processed_once(gateway: &Gateway, app: &Upstream) {
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|client| {
                scope.spawn(move || {
                    let mut connection = gateway.connect();
                    let posts = (0..60).map(|post| {
                        let body = format!("{client}-{post}-").repeat(1 + 200 * (post % 3));
                        let name = format!("/{client}/{post}");
                        if post % 2 == 0 {
                            let length = body.len();
                            connection.send(format!(
                                "POST {name} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
                            ));
                        } else {
                            let head = format!("POST {name} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
                            connection.send(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
                        }
                        connection.answer("POST").status
                    });
                    posts.collect::<Vec<u16>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().expect("no panic"))
            .collect()
    });
    let lost = statuses.iter().filter(|status| **status != 200).count();
    assert_eq!(lost, 0, "of {} POSTs", statuses.len());
    let mut seen = BTreeMap::<String, usize>::new();
    for request in app.seen() {
        *seen.entry(request.line().to_owned()).or_default() += 1;
        let name = request.line().split(['/', ' ']).collect::<Vec<_>>();
        let begun = format!("{}-{}-", name[2], name[3]);
        assert!(
            String::from_utf8_lossy(&request.body).starts_with(&begun),
            "its own body: {request:?}"
        );
    }
    let doubled: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    assert_eq!(seen.len(), statuses.len());
}

fn before(url: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"{url}\"]\nhttp2 = true\n{more}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n"
    ))
}

#[test]
fn http2_goaway_of_nginx_loses_and_doubles_no_post() {
    let app = Upstream::hello();
    let nginx = Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port} http2; keepalive_requests 20; location / {{ proxy_pass {}; }} }}",
            app.url()
        )
    });
    let Some(nginx) = nginx else { return };
    // It is no attempt: nothing was processed.
    let gateway = before(
        &format!("http://127.0.0.1:{}", nginx.port()),
        "retries = { attempts = 1 }",
    );
    assert_every_post_is_processed_once(&gateway, &app);
}

/// An NGINX with TLS, whose certificate is for `localhost`.
fn encrypted(folder: &Path, protocols: &str, app: &Upstream) -> Option<Nginx> {
    let signer = authority(folder, "root");
    issue(folder, "site", &signer);
    let at = folder.display();
    Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl{protocols}; keepalive_requests 20;\n\
             ssl_certificate {at}/site.pem; ssl_certificate_key {at}/site.key;\n\
             location / {{ proxy_pass {}; }} }}",
            app.url()
        )
    })
}

#[test]
fn http2_goaway_of_nginx_over_tls_loses_and_doubles_no_post() {
    let (app, folder) = (Upstream::hello(), tempfile::tempdir().expect("a folder"));
    let Some(nginx) = encrypted(folder.path(), " http2", &app) else {
        return;
    };
    let more = format!("ca_file = '{}'", folder.path().join("root.pem").display());
    let gateway = before(&format!("https://localhost:{}", nginx.port()), &more);
    assert_every_post_is_processed_once(&gateway, &app);
}
#[test]
fn http2_upstream_that_agrees_on_http1_by_alpn_is_spoken_to_in_http1() {
    let (app, folder) = (Upstream::hello(), tempfile::tempdir().expect("a folder"));
    let Some(nginx) = encrypted(folder.path(), "", &app) else {
        return;
    };
    let more = format!("ca_file = '{}'", folder.path().join("root.pem").display());
    let gateway = before(&format!("https://localhost:{}", nginx.port()), &more);
    for _ in 0..3 {
        assert_eq!(
            gateway.request("GET", "/a", &[("cookie", "a=b")]).text(),
            "hello"
        );
        let mut connection = gateway.connect();
        connection.send(
            "POST /b HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        );
        assert_eq!(connection.answer("POST").text(), "hello");
        assert_eq!(app.last().body, b"hi");
    }
    assert_every_post_is_processed_once_after(&gateway, &app);
}

/// As [`assert_every_post_is_processed_once`], for a server that has been asked before; over HTTP/1.1 a connection that
/// closes at the same moment may cost a POST, which is not sent twice.
fn assert_every_post_is_processed_once_after(gateway: &Gateway, app: &Upstream) {
    let asked = app.seen().len();
    for post in 0..50 {
        assert_eq!(
            gateway.request("GET", &format!("/get/{post}"), &[]).status,
            200
        );
    }
    assert_eq!(app.seen().len(), asked + 50);
}
