//! The audit at start-up: finds settings that would stop the store from working or lose buckets.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::engine::Engine;
use crate::audit::{Finding, Weight, distant_clock};

/// Facts about a server and about our schema in it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    engine: Engine,
    /// The server's clock: microseconds since the epoch.
    pub(super) now: i64,
    pub(super) isolation: String,
    pub(super) read_only: bool,
    pub(super) standby: bool,
    fsync: bool,
    full_page_writes: bool,
    pub(super) table: bool,
    pub(super) functions: bool,
    /// The version of the functions; zero: unknown, or the user may not call them.
    version: i64,
    /// Whether the table has this version's columns.
    columns: bool,
    unlogged: bool,
    /// Rights on the tables and functions that the user lacks.
    lacks: Vec<String>,
}

/// The version of `schema.sql`, which its `tollgate_version` returns, and of the rows. A gateway
/// that knows fewer kinds of rows does not use the store.
pub(super) const VERSION: i64 = 8;

/// Returns one row whatever exists; names are looked up in the session's own search path.
const ASK: &str = "
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       current_setting('default_transaction_isolation'),
       current_setting('default_transaction_read_only') = 'on',
       pg_is_in_recovery(),
       coalesce(current_setting('fsync', true), 'on') <> 'off',
       coalesce(current_setting('full_page_writes', true), 'on') <> 'off',
       to_regclass('tollgate_buckets') IS NOT NULL AND to_regclass('tollgate_gateways') IS NOT NULL,
       to_regprocedure($1) IS NOT NULL,
       ARRAY(SELECT attname::text FROM pg_attribute
             WHERE attrelid = to_regclass('tollgate_buckets') AND attnum > 0 AND NOT attisdropped ORDER BY attnum)
           = '{key,expires,kind,epoch,a,b,c,level,at,more}'::text[],
       coalesce((SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass('tollgate_buckets')), true),
       ARRAY(SELECT word || ' ON ' || name
             FROM unnest(ARRAY['tollgate_buckets', 'tollgate_gateways']) AS name,
                  unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS word
             WHERE NOT coalesce(has_table_privilege(to_regclass(name), word), true)
             UNION ALL
             SELECT 'EXECUTE ON FUNCTION ' || name
             FROM unnest(ARRAY[$1, 'tollgate_version()',
                               'tollgate_level(bigint,bigint,bigint,bigint,bigint,bigint)',
                               'tollgate_able(bigint,bigint,bigint,bigint)']) AS name
             WHERE NOT coalesce(has_function_privilege(to_regprocedure(name), 'EXECUTE'), true)),
       coalesce(has_function_privilege(to_regprocedure('tollgate_version()'), 'EXECUTE'), false)";

impl Facts {
    pub(super) async fn ask(
        client: &tokio_postgres::Client,
        engine: Engine,
    ) -> Result<Self, tokio_postgres::Error> {
        let function = engine.function();
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&function, Type::TEXT)];
        let row = client.query_typed_one(ASK, &parameters).await?;
        let mut facts = Self::of(&row, engine)?;
        // Only if the table exists: a statement that names a missing object fails as a whole.
        if row.try_get(11)? {
            let version = client.query_typed_one("SELECT tollgate_version()", &[]);
            facts.version = version.await?.try_get(0)?;
        }
        Ok(facts)
    }

    fn of(row: &Row, engine: Engine) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            engine,
            now: row.try_get(0)?,
            isolation: row.try_get(1)?,
            read_only: row.try_get(2)?,
            standby: row.try_get(3)?,
            fsync: row.try_get(4)?,
            full_page_writes: row.try_get(5)?,
            table: row.try_get(6)?,
            functions: row.try_get(7)?,
            version: 0,
            columns: row.try_get(8)?,
            unlogged: row.try_get(9)?,
            lacks: row.try_get(10)?,
        })
    }

    pub(super) fn complete(&self) -> bool {
        self.table && self.functions && (self.version >= VERSION || !self.lacks.is_empty())
    }

    /// Whether the table is logged, so that writes wait for the disk.
    pub(super) fn logged(&self) -> bool {
        self.table && !self.unlogged
    }

    /// Why the store cannot work at all, with the remedy.
    pub(super) fn obstacle(&self) -> Option<String> {
        let schema = match self.engine {
            Engine::Postgres => "tollgate schema --sql postgres",
            _ => "tollgate schema --sql spanning",
        };
        if self.standby {
            Some("the server is a standby, which cannot be written to: the URL must lead to the primary (host=a,b with target_session_attrs=read-write finds it)".into())
        } else if self.table && !self.columns {
            Some(format!(
                "the table tollgate_buckets is of another version: drop it and apply `{schema}`"
            ))
        } else if !self.complete() {
            let what = if self.table {
                "functions of this version"
            } else {
                "table tollgate_buckets"
            };
            Some(format!(
                "there is no {what} in the user's search path: apply `{schema}`"
            ))
        } else if !self.lacks.is_empty() {
            Some(format!(
                "the user may not {}: GRANT it",
                self.lacks.join(", ")
            ))
        } else if self.version > VERSION {
            Some(format!(
                "the functions are of version {}, made by a later gateway than this one, which speaks version {VERSION}: upgrade it, or DROP them and apply `{schema}` of this one",
                self.version
            ))
        } else {
            None
        }
    }

    /// The findings. `ours`: our clock; `synchronous`: whether a charge waits for the disk;
    /// `long_quotas`: whether the store has limits of a day or longer.
    pub(super) fn audit(&self, ours: u64, synchronous: bool, long_quotas: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut find = |weight, message: String| findings.push(Finding { weight, message });
        if let Some(obstacle) = self.obstacle() {
            find(Weight::Refusal, obstacle);
        }
        findings.extend(distant_clock(u64::try_from(self.now).unwrap_or(0), ours));
        if self.engine.spans() {
            // The settings of PostgreSQL mean nothing there.
            return findings;
        }
        let mut find = |weight, message: String| findings.push(Finding { weight, message });
        if !self.fsync {
            let weight = if self.logged() {
                Weight::Refusal
            } else {
                Weight::Warning
            };
            find(
                weight,
                "fsync is off: a crash of its machine may leave the database unusable, buckets with it; set fsync = on".into(),
            );
        }
        if !self.full_page_writes && self.logged() {
            find(
                Weight::Warning,
                "full_page_writes is off: a crash of its machine may leave torn pages in the table of buckets".into(),
            );
        }
        if long_quotas && self.table && self.unlogged {
            find(
                Weight::Warning,
                "quotas of a day or longer live in an unlogged table, which a crash or a fail-over empties: ALTER TABLE tollgate_buckets SET LOGGED, or on_failover = \"drain\"".into(),
            );
        }
        if long_quotas && self.logged() && !synchronous {
            find(
                Weight::Warning,
                "quotas of a day or longer are charged with synchronous_commit off: a crash may forget the last fraction of a second; set synchronous_commit = true in [store]".into(),
            );
        }
        if self.isolation != "read committed" {
            let message = format!(
                "default_transaction_isolation is {}: every call opens a READ COMMITTED transaction of its own, which costs time; ALTER ROLE … SET default_transaction_isolation = 'read committed' saves it",
                self.isolation
            );
            find(Weight::Warning, message);
        }
        if self.read_only {
            find(
                Weight::Warning,
                "default_transaction_read_only is on: every call opens a READ WRITE transaction of its own, which costs time".into(),
            );
        }
        findings
    }
}

#[cfg(test)]
mod tests;
