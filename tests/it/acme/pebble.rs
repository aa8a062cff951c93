//! Pebble and its name server on free ports, with a certificate of their own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::encrypted::{authority, issue};
use crate::harness::eventually;
use crate::servers::{Process, free_port};
use crate::tools::installed;

pub(crate) const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Where a gateway listens, and the authority checks hosts.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) http: u16,
    pub(crate) https: u16,
}

impl Ports {
    pub(crate) fn free() -> Self {
        Self {
            http: free_port(),
            https: free_port(),
        }
    }
}

/// A running authority.
pub(crate) struct Pebble {
    process: Option<Process>,
    _names: Process,
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    checks: Ports,
    port: u16,
    management: u16,
    names: u16,
    names_management: u16,
}

impl Pebble {
    /// An authority that checks hosts on these ports; `None`: it is not installed, which has been said.
    pub(crate) fn start(checks: Ports, environment: &[(&str, &str)]) -> Option<Self> {
        if !installed("pebble") || !installed("curl") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        issue(
            folder.path(),
            "site",
            &authority(folder.path(), "authority"),
        );
        let (names, names_management) = (free_port(), free_port());
        let mut server = Command::new("pebble-challtestsrv");
        for (name, value) in [
            ("-defaultIPv6", String::new()),
            ("-http01", String::new()),
            ("-https01", String::new()),
            ("-tlsalpn01", String::new()),
            ("-dns01", format!("127.0.0.1:{names}")),
            ("-management", format!("127.0.0.1:{names_management}")),
        ] {
            server.args([name, &value]);
        }
        let own = |(name, value): &(&str, &str)| (String::from(*name), String::from(*value));
        let pebble = Self {
            process: None,
            _names: Process::spawn(&mut server),
            folder,
            environment: environment.iter().map(own).collect(),
            checks,
            port: free_port(),
            management: free_port(),
            names,
            names_management,
        };
        Some(pebble.again(YEAR * 5))
    }

    /// Starts it, without what it knew; its certificates are valid for so long.
    pub(crate) fn again(mut self, validity: Duration) -> Self {
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.port),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": self.folder.path().join("site.pem"),
            "privateKey": self.folder.path().join("site.key"),
            "httpPort": self.checks.http,
            "tlsPort": self.checks.https,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "domainBlocklist": ["blocked.example.com"],
            "certificateValidityPeriod": validity.as_secs(),
        }});
        let file = self.folder.path().join("pebble.json");
        fs::write(&file, config.to_string()).expect("written");
        let mut server = Command::new("pebble");
        server.arg("-config").arg(file);
        server.args(["-dnsserver", &format!("127.0.0.1:{}", self.names)]);
        server.env("PEBBLE_VA_NOSLEEP", "1");
        for (name, value) in &self.environment {
            server.env(name, value);
        }
        self.process = Some(Process::spawn(&mut server));
        let url = format!("https://127.0.0.1:{}/roots/0", self.management);
        eventually("an authority", || {
            let root = Command::new("curl").args(["-sk", &url]).output();
            let root = root.expect("curl runs").stdout;
            fs::write(self.root(), &root).expect("written");
            root.starts_with(b"-----BEGIN")
        });
        self
    }

    pub(crate) fn stopped(mut self) -> Self {
        self.process = None;
        self
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Who signed the certificate of its directory.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Who signs the certificates that it issues.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root.pem")
    }

    /// Gives a host another address.
    pub(crate) fn resolve(&self, host: &str, address: &str) {
        for (verb, document) in [
            ("clear-a", serde_json::json!({ "host": host })),
            (
                "add-a",
                serde_json::json!({ "host": host, "addresses": [address] }),
            ),
        ] {
            let url = format!("http://127.0.0.1:{}/{verb}", self.names_management);
            eventually("a name server", || {
                let sent = Command::new("curl")
                    .args(["-s", "-f", "-d", &document.to_string(), &url])
                    .status();
                sent.expect("curl runs").success()
            });
        }
    }
}
