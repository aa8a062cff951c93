//! The audit at start-up of a MariaDB or MySQL: finds settings that would stop the store from
//! working or lose buckets.

use mysql_async::Row;

use super::client::{Client, Failed};
use super::fault::Fault;
use super::link::number;
use crate::audit::{Finding, Weight, distant_clock};

/// The version of `schema.sql`, and of the kinds of rows: the comment of the table of buckets.
pub(super) const VERSION: &str = "tollgate 2";

/// The tables, each with the engine that it must have.
const TABLES: [(&str, &str); 3] = [
    ("tollgate_buckets", "InnoDB"),
    ("tollgate_gateways", "InnoDB"),
    ("tollgate_twin", "MEMORY"),
];

/// Statements that use every right and change nothing.
const RIGHTS: &str = "
    INSERT INTO tollgate_buckets SELECT * FROM tollgate_buckets WHERE FALSE;
    UPDATE tollgate_buckets SET expires = 0 WHERE FALSE;
    DELETE FROM tollgate_buckets WHERE FALSE;
    INSERT INTO tollgate_gateways SELECT * FROM tollgate_gateways WHERE FALSE;
    UPDATE tollgate_gateways SET seen = 0 WHERE FALSE;
    DELETE FROM tollgate_gateways WHERE FALSE;
    INSERT INTO tollgate_twin SELECT * FROM tollgate_twin WHERE FALSE";

/// Facts about a server and about our tables in it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The server's clock: microseconds since the epoch.
    now: i64,
    /// Whether it is a replica, or closed for writes.
    pub(super) read_only: bool,
    /// What a COMMIT waits for: 1: the disk, 2: the operating system, 0: nothing.
    flush: i64,
    no_sync: bool,
    doublewrite: bool,
    /// Whether a binary log refuses changes under READ COMMITTED.
    statement_log: bool,
    /// The engines of the tables, and the version of the first.
    tables: Vec<(String, String, String)>,
    procedure: bool,
    lacks: Option<String>,
    /// The identifier of the Galera cluster of which the server is a node.
    pub(super) cluster: Option<String>,
}

/// The variables of Galera are looked up by name: a MariaDB may be built without them.
const ASK: &str = "
    SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
           @@global.read_only, @@global.innodb_flush_log_at_trx_commit,
           COALESCE(@@global.innodb_flush_method = 'nosync', FALSE), @@global.innodb_doublewrite,
           @@global.log_bin AND @@global.binlog_format = 'STATEMENT',
           (SELECT COUNT(*) FROM information_schema.ROUTINES
            WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME = 'tollgate_draw_4') = 1,
           COALESCE(/*M! (SELECT state.VARIABLE_VALUE
                          FROM information_schema.GLOBAL_STATUS AS state, information_schema.GLOBAL_VARIABLES AS used
                          WHERE state.VARIABLE_NAME = 'WSREP_CLUSTER_STATE_UUID'
                              AND used.VARIABLE_NAME = 'WSREP_ON' AND used.VARIABLE_VALUE = 'ON'), */ '');
    SELECT TABLE_NAME, COALESCE(ENGINE, ''), TABLE_COMMENT FROM information_schema.TABLES
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('tollgate_buckets', 'tollgate_gateways', 'tollgate_twin')";

/// Whether it names a cluster; a server without one may report zeros.
fn is_identifier(cluster: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let is_named = cluster.bytes().any(|byte| !matches!(byte, b'0' | b'-'));
    is_named && cluster.bytes().all(is_part)
}

impl Facts {
    pub(super) async fn ask(client: &Client) -> Result<Self, Fault> {
        let sets = client.run(ASK).await?;
        let [settings, tables] = sets.as_slice() else {
            return Err(Fault::Corrupt("not a response about settings"));
        };
        let settings = settings.first().ok_or(Fault::Corrupt("no settings"))?;
        let mut facts = Self::of(settings, tables)?;
        if facts.complete() && !facts.read_only {
            facts.lacks = match client.run(RIGHTS).await {
                Ok(_) => None,
                Err(Failed::Error(mysql_async::Error::Server(error))) if error.code == 1142 => {
                    Some(error.message)
                }
                Err(failed) => return Err(failed.into()),
            };
        }
        Ok(facts)
    }

    fn of(settings: &Row, tables: &[Row]) -> Result<Self, Fault> {
        let text = |row: &Row, column| -> String {
            row.get_opt(column).and_then(Result::ok).unwrap_or_default()
        };
        // (ON and OFF are numbers here, but words of `innodb_doublewrite` in MySQL.)
        let is_on = |column| !["0", "OFF"].contains(&text(settings, column).as_str());
        Ok(Self {
            now: number(settings, 0)?.unwrap_or(0),
            read_only: is_on(1),
            flush: number(settings, 2)?.unwrap_or(1),
            no_sync: is_on(3),
            doublewrite: is_on(4),
            statement_log: is_on(5),
            procedure: is_on(6),
            cluster: Some(text(settings, 7)).filter(|cluster| is_identifier(cluster)),
            tables: tables
                .iter()
                .map(|row| (text(row, 0), text(row, 1), text(row, 2)))
                .collect(),
            lacks: None,
        })
    }

    pub(super) fn complete(&self) -> bool {
        self.tables.len() == TABLES.len() && self.procedure
    }

    /// Why the store cannot work at all, with the remedy.
    pub(super) fn obstacle(&self) -> Option<String> {
        let other = TABLES.iter().find_map(|(name, engine)| {
            let (_, found, comment) = self.tables.iter().find(|(table, ..)| table == name)?;
            if !found.eq_ignore_ascii_case(engine) {
                return Some(format!(
                    "the table {name} has the engine {found}: ALTER TABLE {name} ENGINE = {engine}"
                ));
            }
            (*name == TABLES[0].0 && comment != VERSION).then(|| {
                format!(
                    "the table {name} is of another version ({comment:?}, this gateway speaks {VERSION:?}): use the gateway that made it, or drop the table and apply `tollgate schema --sql mysql`"
                )
            })
        });
        if self.read_only {
            Some("the server is read-only, like a replica: the URL must lead to the primary (mysql://user@a,b/database takes the first that can be written to)".into())
        } else if let Some((name, _)) = TABLES
            .iter()
            .find(|(name, _)| !self.tables.iter().any(|(table, ..)| table == name))
        {
            Some(format!(
                "there is no table {name} in the database, or the user may not see it: apply `tollgate schema --sql mysql`, and GRANT SELECT, INSERT, UPDATE, DELETE"
            ))
        } else if other.is_some() {
            other
        } else if !self.procedure {
            Some("there is no procedure tollgate_draw_4 in the database, or the user may not call it: apply `tollgate schema --sql mysql`, and GRANT EXECUTE".into())
        } else if let Some(lacks) = &self.lacks {
            Some(format!("{lacks}: GRANT it"))
        } else if self.statement_log {
            Some("binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED".into())
        } else {
            None
        }
    }

    /// `ours`: our clock; `long_quotas`: whether the store has limits of a day or longer.
    pub(super) fn audit(&self, ours: u64, long_quotas: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut find = |weight, message: String| findings.push(Finding { weight, message });
        if let Some(obstacle) = self.obstacle() {
            find(Weight::Refusal, obstacle);
        }
        if self.no_sync {
            find(
                Weight::Refusal,
                "innodb_flush_method is nosync: a crash of its machine may leave the database unusable, buckets with it; set it to O_DIRECT or fsync".into(),
            );
        }
        if !self.doublewrite {
            find(
                Weight::Warning,
                "innodb_doublewrite is off: a crash of its machine may leave torn pages in the table of buckets".into(),
            );
        }
        if long_quotas && self.flush != 1 {
            let message = format!(
                "quotas of a day or longer are charged with innodb_flush_log_at_trx_commit = {}: a crash of the {} may forget the last second; set it to 1, or on_failover = \"drain\"",
                self.flush,
                if self.flush == 0 { "server" } else { "machine" }
            );
            find(Weight::Warning, message);
        }
        findings.extend(distant_clock(u64::try_from(self.now).unwrap_or(0), ours));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Facts {
        Facts {
            now: 2,
            read_only: false,
            flush: 1,
            no_sync: false,
            doublewrite: true,
            statement_log: false,
            procedure: true,
            cluster: None,
            tables: TABLES
                .iter()
                .map(|(name, engine)| ((*name).into(), (*engine).into(), VERSION.into()))
                .collect(),
            lacks: None,
        }
    }

    fn weights(facts: &Facts, long_quotas: bool) -> Vec<Weight> {
        facts
            .audit(3, long_quotas)
            .into_iter()
            .map(|finding| finding.weight)
            .collect()
    }

    #[test]
    fn mysql_schema_has_the_version_and_engines_that_are_audited() {
        let schema = super::super::schema_sql();
        assert!(schema.contains(&format!("COMMENT = '{VERSION}'")));
        for (name, engine) in TABLES {
            let made = schema.split(&format!("EXISTS {name} (")).nth(1);
            let made = made.and_then(|made| made.split("ENGINE = ").nth(1));
            assert!(made.is_some_and(|made| made.starts_with(engine)), "{name}");
        }
    }

    #[test]
    fn mysql_cluster_is_one_that_has_an_identifier() {
        assert!(is_identifier("0d7a4c1e-cc1f-11f0-9a3c-2b6f5f7a1e90"));
        for none in ["", "00000000-0000-0000-0000-000000000000", "1') --"] {
            assert!(!is_identifier(none), "{none}");
        }
    }

    #[test]
    fn mysql_audit_of_a_server_as_it_comes_finds_nothing() {
        assert_eq!(fine().audit(3, true), []);
    }

    #[test]
    fn mysql_audit_refuses_settings_that_cannot_work() {
        let with = |change: fn(&mut Facts)| {
            let mut facts = fine();
            change(&mut facts);
            facts
        };
        for broken in [
            with(|facts| facts.read_only = true),
            with(|facts| facts.no_sync = true),
            with(|facts| facts.statement_log = true),
            with(|facts| facts.procedure = false),
            with(|facts| facts.tables[0].1 = "MyISAM".into()),
            with(|facts| facts.tables[2].1 = "InnoDB".into()),
            with(|facts| facts.tables[0].2 = "tollgate 1".into()),
            with(|facts| drop(facts.tables.pop())),
            with(|facts| facts.lacks = Some("UPDATE command denied".into())),
        ] {
            assert_eq!(weights(&broken, false), [Weight::Refusal], "{broken:?}");
        }
    }

    #[test]
    fn mysql_audit_warns_of_losses_by_a_crash() {
        for flush in [0, 2] {
            let facts = Facts { flush, ..fine() };
            assert_eq!(weights(&facts, true), [Weight::Warning]);
            assert_eq!(weights(&facts, false), []);
        }
        let torn = Facts {
            doublewrite: false,
            ..fine()
        };
        assert_eq!(weights(&torn, false), [Weight::Warning]);
        let far = Facts {
            now: 60_000_000,
            ..fine()
        };
        assert_eq!(weights(&far, false), [Weight::Warning]);
    }
}
