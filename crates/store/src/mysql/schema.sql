-- The tables and the procedure of a shared store in MariaDB (10.6 or later) or MySQL (8.0.29 or later), version 1. Safe to
-- run again; run by the gateway when it may create things, or by you: `tollgate schema --sql mysql | mariadb DATABASE`.
DELIMITER //

-- InnoDB: a decision locks its rows. No index but the key's, so that an update changes one page.
CREATE TABLE IF NOT EXISTS tollgate_buckets (
    -- The keyed hash of limit and caller. The mark of the data has the key 'tollgate':
    -- crates/store/src/mysql/mark.rs.
    bucket  VARBINARY(16) NOT NULL PRIMARY KEY,
    -- Microseconds since the epoch: from then on the bucket equals no bucket and may be swept.
    expires BIGINT NOT NULL,
    -- The algorithm's number; null: a full bucket.
    kind    BIGINT,
    -- The print of the mark when the row was written.
    print   BIGINT,
    -- Token bucket (1): gained in a microsecond, fractions of a unit, level of a full bucket.
    a       BIGINT,
    b       BIGINT,
    c       BIGINT,
    -- It stands at `level - price * taken` since `at`: the last call found it at `level`.
    level   BIGINT,
    at      BIGINT,
    price   BIGINT,
    taken   BIGINT,
    -- The numbers of every other kind, with commas between them. Of a token bucket: the burst that it has to fill before
    -- it is forgotten, where other numbers have clamped it. See crates/limit/src/rescale.rs.
    more    MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin
) ENGINE = InnoDB COMMENT = 'tollgate 1'//

-- The gateways that use the store, by their heartbeats, in microseconds since the epoch.
CREATE TABLE IF NOT EXISTS tollgate_gateways (
    id   BIGINT NOT NULL PRIMARY KEY,
    seen BIGINT NOT NULL
) ENGINE = InnoDB//

-- The twin of the mark, which a restart of the server empties. Rows are only added: a replica that was restarted has
-- lost its rows, and could not follow a change of them.
CREATE TABLE IF NOT EXISTS tollgate_twin (
    print BIGINT NOT NULL PRIMARY KEY
) ENGINE = MEMORY//

-- Requests for one token bucket each, at most one group of equal requests a bucket. `wanted` has for each bucket, in key
-- order: its key in hexadecimal; n, p and the level of a full bucket; a time in which any level fills; the price of a
-- request and the level it needs; how many requests a full bucket grants; how long its row is kept; how many requests.
-- The clock is read before any lock is waited for, which is only stricter: a clock behind `at` mints nothing. A
-- translation of crates/limit/src/token_bucket.rs; assignments are made from top to bottom.
-- Answers how many were granted in all and, of each bucket, the moment, the level before, its moment and how many were
-- granted. Null: a bucket was written by another limit, algorithm or version, or lies ahead of the clock: the gateway
-- decides it in a transaction.
CREATE PROCEDURE IF NOT EXISTS tollgate_draw_1(wanted LONGTEXT CHARACTER SET ascii, mark BIGINT, moment BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE least_, granted BIGINT;
    DECLARE answer LONGTEXT CHARACTER SET ascii;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    IF moment IS NULL THEN
        SET moment = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    END IF;
    INSERT INTO tollgate_buckets (bucket, expires, kind, print, a, b, c, level, at, price, taken)
    SELECT UNHEX(want.name), moment + want.lasts, 1, mark, want.n, want.p, want.brim, want.brim, moment, want.price,
           LEAST(want.count, want.fresh)
    FROM JSON_TABLE(wanted, '$[*]' COLUMNS (
        name CHAR(32) PATH '$[0]', n BIGINT PATH '$[1]', p BIGINT PATH '$[2]', brim BIGINT PATH '$[3]',
        fill BIGINT PATH '$[4]', price BIGINT PATH '$[5]', need BIGINT PATH '$[6]', fresh BIGINT PATH '$[7]',
        lasts BIGINT PATH '$[8]', count BIGINT PATH '$[9]')) AS want
    ORDER BY want.name
    ON DUPLICATE KEY UPDATE
        level = CASE WHEN tollgate_buckets.kind IS NULL THEN want.brim
            ELSE LEAST(want.brim, tollgate_buckets.level - tollgate_buckets.price * tollgate_buckets.taken
                + LEAST(GREATEST(moment - tollgate_buckets.at, 0), want.fill) * want.n) END,
        taken = CASE WHEN tollgate_buckets.kind IS NULL THEN LEAST(want.count, want.fresh)
            WHEN tollgate_buckets.kind = 1 AND tollgate_buckets.a = want.n AND tollgate_buckets.b = want.p
                AND tollgate_buckets.c = want.brim AND tollgate_buckets.more IS NULL
                AND tollgate_buckets.level IS NOT NULL AND tollgate_buckets.at <= moment + 1000000
            THEN GREATEST(0, LEAST(want.count, (tollgate_buckets.level - want.need + want.price) DIV want.price))
            ELSE -1 END,
        at = CASE WHEN tollgate_buckets.kind IS NULL THEN moment ELSE GREATEST(tollgate_buckets.at, moment) END,
        price = want.price, expires = GREATEST(tollgate_buckets.expires, moment + want.lasts), kind = 1, print = mark,
        a = want.n, b = want.p, c = want.brim, more = NULL;
    SELECT MIN(bucket.taken), SUM(bucket.taken),
           GROUP_CONCAT(CONCAT_WS(',', moment, bucket.level, bucket.at, bucket.taken) ORDER BY want.name)
    INTO least_, granted, answer
    FROM JSON_TABLE(wanted, '$[*]' COLUMNS (name CHAR(32) PATH '$[0]')) AS want
    STRAIGHT_JOIN tollgate_buckets AS bucket ON bucket.bucket = UNHEX(want.name);
    IF least_ >= 0 AND granted > 0 THEN
        COMMIT;
    ELSE
        -- A refusal charges nothing, so there is nothing to store.
        ROLLBACK;
    END IF;
    SELECT granted, IF(least_ >= 0, answer, NULL);
END//
DELIMITER ;
