//! Certificates towards upstreams are read again when they change, as the listeners' are.

use std::fs;

use crate::encrypted::{authority, issue};
use crate::harness::{Gateway, Nginx, Upstream, eventually};

#[test]
fn upstream_ca_file_and_client_certificate_are_read_again_when_they_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (
        authority(folder.path(), "one"),
        authority(folder.path(), "two"),
    );
    issue(folder.path(), "site", &one);
    issue(folder.path(), "ours", &two);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let app = Upstream::hello();
    // It verifies clients against `one`; our certificate is by `two`, and `two` is all we trust at first.
    let nginx = Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
             ssl_verify_client on; ssl_client_certificate {};\n\
             location / {{ proxy_pass {}; }} }}",
            at("site.pem"),
            at("site.key"),
            at("one.pem"),
            app.url()
        )
    });
    let Some(nginx) = nginx else { return };
    fs::copy(at("two.pem"), at("trusted.pem")).expect("copied");
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [upstreams.app]\nservers = [\"https://localhost:{}\"]\nca_file = '{}'\n\
         client_certificate = '{}'\nclient_key = '{}'\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        nginx.port(),
        at("trusted.pem"),
        at("ours.pem"),
        at("ours.key"),
    );
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.get("/").status, 502, "it is not trusted");
    fs::copy(at("one.pem"), at("trusted.pem")).expect("copied");
    eventually("the new authority is trusted", || {
        gateway.get("/").status == 400
    });

    // A file that is no certificate changes nothing, and is told of.
    fs::write(at("trusted.pem"), "-----BEGIN CERTIFICATE-----\nnothing\n").expect("written");
    eventually("it is refused", || {
        let status = gateway.admin_get("/api/v1/status").text();
        status.contains("trusted.pem")
    });
    assert_eq!(gateway.get("/").status, 400, "the one in force stays");
    let refused = gateway.reload(&config).expect_err("it is no certificate");
    assert!(refused.contains("trusted.pem"), "{refused}");
    fs::copy(at("one.pem"), at("trusted.pem")).expect("copied");

    issue(folder.path(), "ours", &one);
    gateway.reload(&config).expect("in force");
    assert_eq!(
        gateway.get("/").text(),
        "hello",
        "our new certificate is shown"
    );
}

#[test]
fn upstream_ca_file_that_holds_no_certificate_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("empty.pem");
    fs::write(&file, "").expect("written");
    let config = format!(
        "[upstreams.app]\nservers = [\"https://localhost:1\"]\nca_file = '{}'\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        file.display()
    );
    let error = Gateway::try_start(&config)
        .err()
        .expect("it does not start");
    assert!(
        error.contains("empty.pem") && error.contains("no certificate"),
        "{error}"
    );
}
