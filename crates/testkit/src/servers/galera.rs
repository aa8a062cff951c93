//! A Galera cluster of a test's own: MariaDB servers of which each can be written to.

use std::path::Path;

use super::{Maria, free_port, wait_until};

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
                "gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{later};gcache.size=8M;pc.recovery=no"
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

    /// Starts the first node again, once the others have noticed that it was gone: before that it may leave each of them
    /// without a majority.
    pub(super) fn run_first(&mut self) {
        wait_until("cluster of two nodes", || {
            see(&self.nodes[1..], "2,Primary")
        });
        self.nodes[0].run();
    }

    /// Waits until all nodes have joined. (A node that goes on after a pause says so until it notices that it was gone, but
    /// the others know.)
    pub fn joined(&self) {
        wait_until("cluster of three nodes", || see(&self.nodes, "3,Primary"));
    }
}

/// Whether all of these nodes see a cluster of this size and status.
fn see(nodes: &[Maria], wanted: &str) -> bool {
    let seen = "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME) FROM information_schema.GLOBAL_STATUS
                WHERE VARIABLE_NAME IN ('WSREP_CLUSTER_SIZE', 'WSREP_CLUSTER_STATUS')";
    let sees = |node: &Maria| node.try_sql(seen).is_ok_and(|seen| seen.trim() == wanted);
    nodes.iter().all(sees)
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
