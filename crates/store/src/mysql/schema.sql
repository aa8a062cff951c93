-- The tables and procedures of a shared store in MariaDB (10.6 or later) or MySQL (8.0.29 or later), version 2. Safe to
-- run again; run by the gateway when it may create things, or by you: `tollgate schema --sql mysql | mariadb DATABASE`.
DELIMITER //

-- InnoDB: a decision locks its rows. No index but the key's, so that an update changes one page.
CREATE TABLE IF NOT EXISTS tollgate_buckets (
    -- The keyed hash of limit and caller. The mark of the data has the key 'tollgate':
    -- crates/store/src/mysql/mark.rs. One with the key 'made' and a gateway's number is a receipt: the number (more) of the
    -- last call with corrections that this gateway has made. One without a kind may be the moment (at) of a bucket's last reset:
    -- crates/store/src/sql/mark.rs.
    bucket  VARBINARY(16) NOT NULL PRIMARY KEY,
    -- Microseconds since the epoch: from then on the bucket equals no bucket and may be swept.
    expires BIGINT NOT NULL,
    -- The algorithm's number; null: a full bucket.
    kind    BIGINT,
    -- The print of the mark when the row was written.
    print   BIGINT,
    -- Token bucket (1): gained in a microsecond and fractions of a unit, those of its last grant, and the level of one that is
    -- full under the largest burst it was drawn under.
    a       BIGINT,
    b       BIGINT,
    c       BIGINT,
    -- It stands at `level - price * taken` since `at`: the last call found it at `level`.
    level   BIGINT,
    at      BIGINT,
    price   BIGINT,
    taken   BIGINT,
    -- The numbers of every other kind, with commas between them.
    more    MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin
) ENGINE = InnoDB COMMENT = 'tollgate 2'//

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

-- The overrides of operators: one row, replaced as a whole, whose epoch every heartbeat reads.
CREATE TABLE IF NOT EXISTS tollgate_overrides (
    id    BIGINT NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    text  LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB//

-- Decides requests for token buckets: every claim of a request is charged, or none. A translation of
-- crates/limit/src/token_bucket.rs. `wanted` has of each bucket, in key order: its key in hexadecimal; n, p and the level of
-- a full bucket; a time in which any level fills; the price of all that is asked of it and the level that needs; whether a
-- full bucket grants that; how long its row is kept. The first statement draws from each bucket all that is asked of it, or
-- nothing. Only where that is too much for one are the `parts` looked at, one for each claim of a group of equal requests:
-- group, key, how many requests, price, need, whether the bucket has no other part, whether the claim is enforced. A bucket
-- that has enough for all of its parts limits none of them, and one with a single part grants what it can. What is left is
-- a bucket that is too small for the several groups that draw from it: their order decides, and the gateway decides it in a
-- transaction; the answer is null, and the list of grants empty.
-- The clock is read before any lock is waited for, which is only stricter: a clock behind `at` mints nothing. Assignments to
-- columns are made from top to bottom. A refusal charges nothing, so it is rolled back: it waits for no disk.
-- Answers of each bucket the moment, the level before and its moment, and how many requests of each part's group were
-- granted; null: all. An answer of null: a bucket has other numbers or a larger burst (crates/limit/src/kept.rs), or lies
-- ahead of the clock: the gateway decides it in a transaction.
CREATE PROCEDURE IF NOT EXISTS tollgate_draw_4(
    wanted LONGTEXT CHARACTER SET ascii, parts LONGTEXT CHARACTER SET ascii, mark BIGINT, moment BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE least_, drawn BIGINT;
    DECLARE answer, grants, charges LONGTEXT CHARACTER SET ascii;
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
    SELECT UNHEX(want_name), moment + want_lasts, 1, mark, want_n, want_p, want_brim, want_brim, moment, want_price,
           want_fresh
    FROM JSON_TABLE(wanted, '$[*]' COLUMNS (
        want_name CHAR(32) CHARACTER SET ascii PATH '$[0]', want_n BIGINT PATH '$[1]', want_p BIGINT PATH '$[2]', want_brim BIGINT PATH '$[3]',
        want_fill BIGINT PATH '$[4]', want_price BIGINT PATH '$[5]', want_need BIGINT PATH '$[6]',
        want_fresh BIGINT PATH '$[7]', want_lasts BIGINT PATH '$[8]')) AS want
    ORDER BY want_name
    ON DUPLICATE KEY UPDATE
        level = CASE WHEN kind IS NULL THEN want_brim
            -- A refusal leaves the bucket as it was: it may be drawn from at another rate next.
            WHEN level - price * taken + LEAST(GREATEST(moment - at, 0), want_fill) * want_n < want_need
            THEN level - price * taken
            ELSE LEAST(want_brim, level - price * taken + LEAST(GREATEST(moment - at, 0), want_fill) * want_n) END,
        taken = CASE WHEN kind IS NULL THEN want_fresh
            WHEN kind = 1 AND a = want_n AND b = want_p AND c = want_brim AND level IS NOT NULL
                AND at <= moment + 1000000
            THEN level >= want_need
            ELSE -1 END,
        at = CASE WHEN kind IS NULL THEN moment WHEN taken = 0 THEN at ELSE GREATEST(at, moment) END,
        price = want_price, expires = GREATEST(expires, moment + want_lasts), kind = 1, print = mark,
        a = want_n, b = want_p, c = want_brim;
    SELECT MIN(bucket.taken), SUM(bucket.taken),
           GROUP_CONCAT(CONCAT_WS(',', moment, bucket.level, bucket.at) ORDER BY want.name)
    INTO least_, drawn, answer
    FROM JSON_TABLE(wanted, '$[*]' COLUMNS (name CHAR(32) CHARACTER SET ascii PATH '$[0]')) AS want
    STRAIGHT_JOIN tollgate_buckets AS bucket ON bucket.bucket = UNHEX(want.name);
    IF least_ = 0 THEN
        SELECT MIN(part.able IS NOT NULL), SUM(part.price * LEAST(part.able, part.granted)),
               GROUP_CONCAT(part.granted ORDER BY part.place),
               CONCAT('[', GROUP_CONCAT(CONCAT('["', part.name, '",', part.price * LEAST(part.able, part.granted), ']')), ']')
        INTO least_, drawn, grants, charges
        FROM (
            SELECT one.*, MIN(IF(one.enforced, one.able, one.count)) OVER (PARTITION BY one.request) AS granted
            FROM (
                SELECT asked.*, CASE WHEN bucket.taken = 1 THEN asked.count
                    WHEN asked.alone THEN GREATEST(0, LEAST(asked.count, (LEAST(bucket.c, bucket.level
                        + LEAST(GREATEST(moment - bucket.at, 0), (bucket.c - bucket.level) DIV bucket.a + 1) * bucket.a)
                        - asked.need + asked.price) DIV asked.price))
                    END AS able
                FROM JSON_TABLE(parts, '$[*]' COLUMNS (
                    place FOR ORDINALITY, request BIGINT PATH '$[0]', name CHAR(32) CHARACTER SET ascii PATH '$[1]', count BIGINT PATH '$[2]',
                    price BIGINT PATH '$[3]', need BIGINT PATH '$[4]', alone BIGINT PATH '$[5]', enforced BIGINT PATH '$[6]')
                ) AS asked
                STRAIGHT_JOIN tollgate_buckets AS bucket ON bucket.bucket = UNHEX(asked.name)
            ) AS one
        ) AS part;
        IF least_ = 1 AND drawn > 0 THEN
            -- Every row is there and locked: an INSERT finds it by its key.
            INSERT INTO tollgate_buckets (bucket, expires, price, taken)
            SELECT UNHEX(charge.name), 0, SUM(charge.units), 1
            FROM JSON_TABLE(charges, '$[*]' COLUMNS (name CHAR(32) CHARACTER SET ascii PATH '$[0]', units BIGINT PATH '$[1]')) AS charge
            GROUP BY charge.name ORDER BY charge.name
            ON DUPLICATE KEY UPDATE
                level = LEAST(c, level + LEAST(GREATEST(moment - at, 0), (c - level) DIV a + 1) * a), at = GREATEST(at, moment),
                price = VALUES(price), taken = VALUES(taken);
        ELSEIF least_ = 0 THEN
            SET least_ = -1, grants = '';
        END IF;
    END IF;
    IF least_ >= 0 AND drawn > 0 THEN
        COMMIT;
    ELSE
        ROLLBACK;
    END IF;
    SELECT IF(least_ >= 0, answer, NULL), grants;
END//
DELIMITER ;
