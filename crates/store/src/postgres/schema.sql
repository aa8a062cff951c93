-- The table and functions of a shared store in PostgreSQL, version 8. Safe to run again; run by the gateway when it may
-- create things, or by you: `tollgate schema --sql postgres | psql DATABASE`.

-- Unlogged: buckets are not worth a write-ahead log. A crash of the server empties the table, a promoted standby has
-- none: `on_failover` says what that means. Make it logged where quotas of a day and longer must survive a crash:
--   ALTER TABLE tollgate_buckets SET LOGGED;
-- Half of each page is kept free so that updates stay in their page, and no index but the key's: it would end that.
CREATE UNLOGGED TABLE IF NOT EXISTS tollgate_buckets (
    key     bytea  NOT NULL PRIMARY KEY,
    -- Microseconds since the epoch: from then on the bucket equals no bucket and may be swept.
    expires bigint NOT NULL,
    -- The algorithm's number; null: a full bucket.
    kind    bigint,
    -- The print of the mark when it was written. The mark is the row whose key is 'tollgate': its print, since when this
    -- table is all there is to know (at), and what tells whether it still is: crates/store/src/postgres/mark.rs.
    epoch   bigint,
    -- A row whose key is 'made' and a gateway's number is a receipt: the number (more) of the last call with corrections
    -- that this gateway has made, so that one that is sent again is recognised. A row without a kind may be the moment (at) of
    -- a bucket's last reset: crates/store/src/sql/mark.rs.
    -- The bucket's numbers. Token bucket (1): gained in a microsecond and fractions of a unit, those of its last grant, and the
    -- level of one that is full under the largest burst it was drawn under. Interval (2) and fixed window (3): the largest
    -- amount it was drawn under.
    a bigint, b bigint, c bigint,
    -- Its level, or what was used, and since when.
    level   bigint,
    at      bigint,
    -- The numbers of every other kind.
    more    bigint[]
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- The gateways that use the store, by their heartbeats; below zero, the twin of the mark.
CREATE UNLOGGED TABLE IF NOT EXISTS tollgate_gateways (
    id   bigint NOT NULL PRIMARY KEY,
    seen timestamptz NOT NULL
);

-- The overrides of operators: one row, replaced as a whole, whose epoch every heartbeat reads. Logged: an
-- override lasts until its end, also through a crash.
CREATE TABLE IF NOT EXISTS tollgate_overrides (
    id    bigint NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL,
    text  text   NOT NULL
);

-- The version of all this and of the kinds of rows, which a gateway looks at when it connects and with each heartbeat.
CREATE OR REPLACE FUNCTION tollgate_version() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 8::bigint';

-- A token bucket's level at a moment. `fill` is a time in which any level comes to the brim, by which the elapsed time is
-- clamped before it is multiplied. A clock behind `at` mints nothing. (The server puts these two into the expressions that
-- use them.)
CREATE OR REPLACE FUNCTION tollgate_level(
    level bigint, at bigint, moment bigint, n bigint, brim bigint, fill bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT least($5, $1 + least(greatest($3 - $2, 0), $6) * $4)';

-- How many of `wanted` equal requests a bucket can pay one after the other; their price is above zero.
CREATE OR REPLACE FUNCTION tollgate_able(level bigint, need bigint, price bigint, wanted bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT greatest(0, least($4, ($1 - $2 + $3) / $3))';

-- Decides requests: every claim of a request is charged, or none. Keys come sorted: two gateways that send the same buckets
-- do not deadlock. Locks in key order, then the clock, then the decision, request after request, then one write. It carries
-- token buckets, intervals and fixed windows (first hit, clock, calendar) in which no request waits and no fail-over drains;
-- the gateway decides everything else in a transaction of its own. Null: a bucket has other numbers or a larger burst
-- (crates/limit/src/kept.rs), or four boundaries of a calendar do not suffice.
-- A translation of crates/limit/src/{token_bucket,stepped}.rs.
--
-- `shapes` has 12 numbers for each limit: kind, 0, then n, p, brim, owed, 0, floor, most, fill, 0, 0 (token bucket) or
-- amount, burst, period, alignment (0 first hit, 1 clock, 2 calendar), debt, 0 and four calendar boundaries around now.
-- `shape_of` counts from zero. `groups` has for each group: how many equal requests, how many claims, and for each
-- claim its bucket (from zero), its cost, and 1 where it is enforced.
-- Answers now, then of each bucket the level before (units left, of the stepped ones), then the moments, then of each group how
-- many were granted.
CREATE OR REPLACE FUNCTION tollgate_draw(
    keys bytea[], shape_of smallint[], shapes bigint[], groups bigint[], fingerprint bigint, pinned bigint
) RETURNS bigint[]
LANGUAGE plpgsql
-- An empty table is cheapest to scan, and its plan is kept when it is full.
SET enable_seqscan = off
AS $$
DECLARE
    buckets  bigint := cardinality(keys);
    kinds    bigint[];
    as_      bigint[];
    bs       bigint[];
    cs       bigint[];
    levels   bigint[];
    ats      bigint[];
    expiries bigint[];
    changed  boolean[];
    found_   bytea[];
    before   bigint[];
    moments  bigint[];
    granted  bigint[] := '{}';
    now_     bigint;
    base     bigint;
    level_   bigint;
    at_      bigint;
    passed   bigint;
    pulled   boolean;
    place    bigint := 1;
    size     bigint := cardinality(groups);
    count_   bigint;
    claims   bigint;
    able     bigint;
    each     bigint[];
    part     bigint;
    slot     bigint;
    cost     bigint;
    price_   bigint;
    need     bigint;
    most     bigint;
BEGIN
    INSERT INTO tollgate_buckets (key, expires) SELECT want.key, 0 FROM unnest(keys) AS want (key)
    ON CONFLICT (key) DO NOTHING;
    SELECT array_agg(held.key), array_agg(held.kind), array_agg(held.a), array_agg(held.b), array_agg(held.c),
           array_agg(held.level), array_agg(held.at), array_agg(held.expires)
    INTO found_, kinds, as_, bs, cs, levels, ats, expiries
    FROM (
        -- No kind of ours is zero: the gateway sees to a row in which a number is missing.
        SELECT bucket.key, bucket.a, bucket.b, bucket.c,
               CASE WHEN bucket.kind IS NULL OR bucket.at IS NOT NULL AND bucket.level IS NOT NULL THEN bucket.kind ELSE 0 END AS kind,
               bucket.level, bucket.at, bucket.expires
        FROM tollgate_buckets AS bucket WHERE bucket.key = ANY (keys) ORDER BY bucket.key FOR UPDATE
    ) AS held;
    IF cardinality(found_) IS DISTINCT FROM buckets THEN
        -- Swept in between.
        RETURN NULL;
    END IF;
    now_ := coalesce(pinned, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

    -- How each bucket stands at this moment.
    FOR bucket IN 1 .. buckets LOOP
        base := shape_of[bucket] * 12;
        level_ := levels[bucket];
        at_ := ats[bucket];
        -- A clock that was put back: the bucket is pulled to it (crates/limit/src/kept/ahead.rs).
        pulled := kinds[bucket] IS NOT NULL AND at_ > now_ + 1000000;
        IF pulled THEN
            at_ := now_;
        END IF;
        IF shapes[base + 1] = 1 THEN
            IF kinds[bucket] IS NULL THEN
                level_ := shapes[base + 5];
                at_ := now_;
            ELSIF kinds[bucket] <> 1 OR as_[bucket] IS DISTINCT FROM shapes[base + 3]
                OR bs[bucket] IS DISTINCT FROM shapes[base + 4] OR cs[bucket] IS DISTINCT FROM shapes[base + 5] THEN
                RETURN NULL;
            END IF;
            level_ := tollgate_level(level_, at_, now_, shapes[base + 3], shapes[base + 5], shapes[base + 10]);
            at_ := greatest(at_, now_);
        ELSE
            IF shapes[base + 6] = 2 AND (now_ < shapes[base + 9] OR now_ >= shapes[base + 12]) THEN
                -- A clock that is windows away from the gateway's.
                RETURN NULL;
            END IF;
            IF kinds[bucket] IS NOT NULL AND (kinds[bucket] <> shapes[base + 1]
                OR as_[bucket] IS DISTINCT FROM shapes[base + 3]) THEN
                RETURN NULL;
            END IF;
            -- Here, the units left.
            level_ := CASE WHEN kinds[bucket] IS NOT NULL THEN shapes[base + 4] - level_ END;
            IF level_ IS NULL THEN
                passed := 0;
            ELSIF shapes[base + 6] = 2 THEN
                passed := 0;
                FOR edge IN 9 .. 12 LOOP
                    IF shapes[base + edge] > at_ AND shapes[base + edge] <= now_ THEN
                        passed := passed + 1;
                    END IF;
                END LOOP;
                IF at_ < shapes[base + 9] AND level_ + passed * shapes[base + 3] < shapes[base + 4] THEN
                    -- They do not tell how many have passed since: the core has the whole calendar.
                    RETURN NULL;
                END IF;
            ELSE
                passed := greatest(now_ - at_, 0) / shapes[base + 5];
            END IF;
            IF level_ IS NULL OR level_ >= shapes[base + 4]
                OR passed >= (shapes[base + 4] - level_ + shapes[base + 3] - 1) / shapes[base + 3] THEN
                -- Full: a step begins with its first use.
                level_ := shapes[base + 4];
                at_ := now_;
                passed := 1;
            ELSE
                level_ := level_ + passed * shapes[base + 3];
                IF shapes[base + 6] <> 2 THEN
                    at_ := at_ + passed * shapes[base + 5];
                    passed := 0;
                END IF;
            END IF;
            IF passed > 0 OR pulled THEN
                -- The start of the step that now lies in.
                IF shapes[base + 6] = 1 THEN
                    at_ := now_ - now_ % shapes[base + 5];
                ELSIF shapes[base + 6] = 2 THEN
                    at_ := 0;
                    FOR edge IN 9 .. 12 LOOP
                        IF shapes[base + edge] <= now_ THEN
                            at_ := shapes[base + edge];
                        END IF;
                    END LOOP;
                END IF;
            END IF;
        END IF;
        levels[bucket] := level_;
        ats[bucket] := at_;
        changed[bucket] := pulled;
    END LOOP;
    before := levels;
    moments := ats;

    -- Group after group: as many of its equal requests as every enforced claim can pay.
    WHILE place <= size LOOP
        count_ := groups[place];
        claims := groups[place + 1];
        place := place + 2;
        able := count_;
        each := NULL;
        FOR claim IN 1 .. claims LOOP
            slot := place + (claim - 1) * 3;
            part := groups[slot] + 1;
            base := shape_of[part] * 12;
            cost := groups[slot + 1];
            most := CASE WHEN shapes[base + 1] = 1 THEN shapes[base + 9] ELSE shapes[base + 4] + shapes[base + 7] END;
            each[claim] := 0;
            -- Compared before it is multiplied: no cost leaves 63 bits.
            IF cost <= most THEN
                IF shapes[base + 1] = 1 THEN
                    price_ := cost * shapes[base + 4];
                    need := greatest(price_ - shapes[base + 6], 0);
                ELSE
                    price_ := cost;
                    need := greatest(cost - shapes[base + 7], 0);
                END IF;
                IF price_ > 0 THEN
                    each[claim] := tollgate_able(levels[part], need, price_, count_);
                ELSIF levels[part] >= need THEN
                    each[claim] := count_;
                END IF;
            END IF;
            IF groups[slot + 2] = 1 THEN
                able := least(able, each[claim]);
            END IF;
        END LOOP;
        IF able > 0 THEN
            FOR claim IN 1 .. claims LOOP
                slot := place + (claim - 1) * 3;
                part := groups[slot] + 1;
                base := shape_of[part] * 12;
                CONTINUE WHEN each[claim] = 0;
                price_ := groups[slot + 1] * CASE WHEN shapes[base + 1] = 1 THEN shapes[base + 4] ELSE 1 END;
                CONTINUE WHEN price_ = 0;
                -- One that is not enforced takes part while it can.
                levels[part] := levels[part] - price_ * least(able, each[claim]);
                changed[part] := true;
            END LOOP;
        END IF;
        granted := granted || able;
        place := place + claims * 3;
    END LOOP;

    -- From when on each bucket is full again, and its row may go.
    FOR bucket IN 1 .. buckets LOOP
        IF changed[bucket] THEN
            base := shape_of[bucket] * 12;
            kinds[bucket] := shapes[base + 1];
            as_[bucket] := shapes[base + 3];
            bs[bucket] := shapes[base + 4];
            cs[bucket] := shapes[base + 5];
            IF shapes[base + 1] = 1 THEN
                passed := (shapes[base + 5] - levels[bucket] + shapes[base + 3] - 1) / shapes[base + 3];
            ELSE
                passed := (shapes[base + 4] - levels[bucket] + shapes[base + 3] - 1) / shapes[base + 3]
                    * shapes[base + 5];
                IF shapes[base + 6] = 2 THEN
                    -- The last boundary listed and the periods beyond it: a month is told as its longest.
                    passed := greatest(shapes[base + 12] - ats[bucket], 0) + passed;
                END IF;
                levels[bucket] := shapes[base + 4] - levels[bucket];
                bs[bucket] := NULL;
                cs[bucket] := NULL;
            END IF;
            expiries[bucket] := greatest(expiries[bucket], ats[bucket] + passed + 1000000);
        END IF;
    END LOOP;
    -- Every row is there: an INSERT finds it by the key's index, whatever the planner thinks of the table.
    INSERT INTO tollgate_buckets AS bucket (key, expires, kind, epoch, a, b, c, level, at)
    SELECT want.key, want.expires, want.kind, fingerprint, want.a, want.b, want.c, want.level, want.at
    FROM unnest(keys, kinds, as_, bs, cs, levels, ats, expiries, changed)
        AS want (key, kind, a, b, c, level, at, expires, changed)
    WHERE want.changed
    ON CONFLICT (key) DO UPDATE SET
        expires = excluded.expires, kind = excluded.kind, epoch = excluded.epoch, a = excluded.a, b = excluded.b,
        c = excluded.c, level = excluded.level, at = excluded.at;
    RETURN now_ || before || moments || granted;
END
$$;
