//! A Galera cluster of a test's own: MariaDB servers of which each can be written to.

use std::path::Path;

use super::{Maria, free_port};

/// Three nodes on this machine. A node that is started again takes its data from another one.
#[derive(Debug)]
pub struct Galera {
    pub nodes: Vec<Maria>,
}

const PROVIDERS: [&str; 2] = [
    "/usr/lib/galera/libgalera_smm.so",
    "/usr/lib64/galera-4/libgalera_smm.so",
];

impl Galera {
    /// Whether a test that needs it can run; see [`super::available`].
    pub fn available() -> bool {
        Maria::available() && super::available("rsync") && provider().is_some()
    }

    /// # Panics
    /// When it is not installed, or a node does not start.
    pub fn start() -> Self {
        let provider = provider().expect("galera-4 is installed");
        let groups = [free_port(), free_port(), free_port()];
        let members = groups.map(|port| format!("127.0.0.1:{port}")).join(",");
        let node = |place: usize| {
            let (group, transfer, later) = (groups[place], free_port(), free_port());
            let options = format!(
                "gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{later};gcache.size=8M;pc.recovery=no;\
                 evs.keepalive_period=PT0.5S;evs.inactive_check_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S"
            );
            // The first one begins the cluster, and joins it when it is started again.
            let others = if place == 0 { "" } else { &members };
            let mut node = Maria::start_as_mysql(&[
                "binlog-format=ROW",
                "innodb-autoinc-lock-mode=2",
                "innodb-flush-log-at-trx-commit=2",
                "wsrep-on=ON",
                &format!("wsrep-provider={provider}"),
                "wsrep-sst-method=rsync",
                &format!("wsrep-node-address=127.0.0.1:{group}"),
                &format!("wsrep-sst-receive-address=127.0.0.1:{transfer}"),
                &format!("wsrep-provider-options={options}"),
                &format!("wsrep-cluster-address=gcomm://{others}"),
            ]);
            node.replace_argument(&format!("wsrep-cluster-address=gcomm://{members}"));
            node
        };
        Self {
            nodes: (0..3).map(node).collect(),
        }
    }
}

fn provider() -> Option<&'static str> {
    let found = PROVIDERS.iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI must not skip: galera-4 is not installed"
        );
        eprintln!("SKIPPED: galera-4 is not installed; this test checked nothing");
    }
    found.copied()
}
