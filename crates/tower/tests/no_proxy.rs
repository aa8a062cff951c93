//! The library brings no proxy, no TLS and no command line along.

use std::process::Command;

/// The crates that a build with these features contains.
fn crates(features: &str) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "tollgate-tower", "--features", features])
        .output()
        .expect("cargo runs");
    let error = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{error}");
    let text = String::from_utf8(tree.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn library_contains_no_proxy_no_tls_and_no_command_line() {
    const NEVER: [&str; 13] = [
        "tollgate",
        "tollgate-net",
        "tollgate-gateway",
        "tollgate-http1",
        "tollgate-telemetry",
        "rustls",
        "tokio-rustls",
        "native-tls",
        "openssl",
        "clap",
        "hyper",
        "axum",
        "tonic",
    ];
    for features in ["", "redis,postgres"] {
        let crates = crates(features);
        assert!(crates.iter().any(|name| name == "tollgate-limit"));
        for never in NEVER {
            assert!(
                !crates.iter().any(|name| name == never),
                "{features}: {never}"
            );
        }
    }
    assert!(crates("redis,tls").iter().any(|name| name == "rustls"));
}
