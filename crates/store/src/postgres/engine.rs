//! Which database speaks PostgreSQL's protocol at the address, and what it does differently.
//!
//! A database that spans machines (YugabyteDB, CockroachDB, Aurora DSQL) replicates a commit before
//! it answers, and has neither system columns nor advisory locks nor unlogged tables; not all of them
//! have PL/pgSQL, an isolation level to choose or arrays in tables. There the transaction decides
//! every batch, in the isolation of the database: the rows of a batch are locked, and a conflict is
//! an error that is tried again. Its tables are in `spanning.sql`.

use tokio_postgres::{Client, Error};

use super::link::DRAW_OF;
use super::{schema_sql, spanning_schema_sql};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Postgres,
    Yugabyte,
    Cockroach,
    Dsql,
    /// The tables have no system columns: views, or a database that is not known by name.
    NoSystemColumns,
}

/// Aurora DSQL says only PostgreSQL's version; the table of roles is its own.
const ASK: &str = "SELECT version(), to_regclass('sys.iam_pg_role_mappings') IS NOT NULL,
    to_regclass('tollgate_buckets') IS NULL OR EXISTS (
        SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('tollgate_buckets') AND attname = 'xmin')";

impl Engine {
    /// The engine, and its name and version.
    pub(super) async fn ask(client: &Client) -> Result<(Self, String), Error> {
        let row = client.query_typed_one(ASK, &[]).await?;
        let version = row.try_get(0)?;
        let engine = Self::of(version, row.try_get(1)?, row.try_get(2)?);
        Ok((engine, engine.words(version)))
    }

    fn of(version: &str, has_dsql_roles: bool, has_system_columns: bool) -> Self {
        if version.starts_with("CockroachDB") {
            Self::Cockroach
        } else if version.contains("-YB-") {
            Self::Yugabyte
        } else if has_dsql_roles {
            Self::Dsql
        } else if has_system_columns {
            Self::Postgres
        } else {
            Self::NoSystemColumns
        }
    }

    fn words(self, version: &str) -> String {
        // The machine and the compiler follow.
        let short = version.split([',', '(']).next().unwrap_or_default();
        let short = short.split(" on ").next().unwrap_or_default().trim();
        match self {
            Self::Postgres | Self::Cockroach => short.to_owned(),
            Self::Yugabyte => format!("YugabyteDB ({short})"),
            Self::Dsql => format!("Aurora DSQL ({short})"),
            Self::NoSystemColumns => format!("{short} without system columns"),
        }
    }

    /// Whether it is used as a database that spans machines.
    pub(super) fn spans(self) -> bool {
        self != Self::Postgres
    }

    /// The function without which the schema is not complete.
    pub(super) fn function(self) -> &'static str {
        match self {
            Self::Postgres => DRAW_OF,
            _ => "tollgate_version()",
        }
    }

    /// The statements of the schema; each is sent alone where a transaction may not have two.
    pub(super) fn schema(self) -> Vec<&'static str> {
        match self {
            Self::Postgres => vec![schema_sql()],
            _ => spanning_schema_sql().trim_end().split(";\n").collect(),
        }
    }

    /// The type of the column `more`.
    pub(super) fn more(self) -> &'static str {
        match self {
            Self::Postgres => "bigint[]",
            _ => "text",
        }
    }

    /// What locks the rows that a statement reads. Aurora DSQL locks nothing: of two transactions
    /// that wrote the same row, the second fails at its COMMIT.
    pub(super) fn for_update(self) -> &'static str {
        match self {
            Self::Dsql => "",
            _ => "FOR UPDATE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_engine_is_known_by_its_version_or_its_tables() {
        let debian = "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, 64-bit";
        for (version, dsql, columns, engine, words) in [
            (debian, false, true, Engine::Postgres, "PostgreSQL 15.18"),
            (
                debian,
                false,
                false,
                Engine::NoSystemColumns,
                "PostgreSQL 15.18 without system columns",
            ),
            (
                "PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang",
                false,
                true,
                Engine::Yugabyte,
                "YugabyteDB (PostgreSQL 15.2-YB-2.25.1.0-b0)",
            ),
            (
                "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15, go1.22.2)",
                false,
                true,
                Engine::Cockroach,
                "CockroachDB CCL v24.1.0",
            ),
            (
                "PostgreSQL 16",
                true,
                false,
                Engine::Dsql,
                "Aurora DSQL (PostgreSQL 16)",
            ),
        ] {
            assert_eq!(Engine::of(version, dsql, columns), engine, "{version}");
            assert_eq!(engine.words(version), words);
        }
    }

    #[test]
    fn postgres_schemas_have_the_same_tables_and_version() {
        let names = |schema: &str| -> Vec<String> {
            let lines = schema.lines().map(str::trim);
            let lines = lines.filter(|line| !line.starts_with("--") && !line.is_empty());
            let code: Vec<&str> = lines
                .take_while(|line| !line.contains("tollgate_level"))
                .collect();
            let types = [
                "bigint[]",
                "UNLOGGED",
                "bytea",
                "bigint",
                "text",
                "timestamptz",
            ];
            let words = code.join(" ").replace([',', '(', ')', ';'], " ");
            let words = words
                .split_whitespace()
                .filter(|word| !types.contains(word));
            words.map(str::to_owned).collect()
        };
        let without_storage = |mut words: Vec<String>| {
            let with = words.iter().position(|word| word == "WITH");
            if let Some(with) = with {
                words.drain(with..with + 10);
            }
            words.truncate(
                words
                    .iter()
                    .position(|word| word == "SELECT")
                    .unwrap_or(words.len()),
            );
            words
        };
        assert_eq!(
            without_storage(names(schema_sql())),
            without_storage(names(spanning_schema_sql()))
        );
    }
}
