-- The tables of a shared store in a database that speaks PostgreSQL's protocol and spans machines (YugabyteDB,
-- CockroachDB, Aurora DSQL), version 8. Safe to run again; run by the gateway when it may create things, or by you:
-- `tollgate schema --sql spanning | psql DATABASE`. The columns are those of `tollgate schema --sql postgres`, which
-- explains them; `more` is the text of an array. The mark's level counts heartbeats: crates/store/src/postgres/mark.rs.
CREATE TABLE IF NOT EXISTS tollgate_buckets (
    key     bytea  NOT NULL PRIMARY KEY,
    expires bigint NOT NULL,
    kind    bigint,
    epoch   bigint,
    a bigint, b bigint, c bigint,
    level   bigint,
    at      bigint,
    more    text
);

CREATE TABLE IF NOT EXISTS tollgate_gateways (
    id   bigint NOT NULL PRIMARY KEY,
    seen timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS tollgate_overrides (
    id    bigint NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL,
    text  text   NOT NULL
);

CREATE OR REPLACE FUNCTION tollgate_version() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 8::bigint';
