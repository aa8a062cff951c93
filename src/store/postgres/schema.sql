-- The table and functions of a shared store in PostgreSQL. Safe to run again; run by the gateway when it may create
-- things, or by you: `tollgate schema --sql postgres | psql …`.

-- Unlogged: buckets are not worth a write-ahead log. A crash of the server empties the table, a promoted standby has
-- none: `on_failover` says what that means. Make it logged where quotas of a day and longer must survive a crash:
--   ALTER TABLE tollgate_buckets SET LOGGED;
-- Half of each page is kept free so that updates stay in their page, and no index but the key's: it would end that.
CREATE UNLOGGED TABLE IF NOT EXISTS tollgate_buckets (
    key     bytea    NOT NULL PRIMARY KEY,
    -- Version, kind, fingerprint of the server, then the kind's own numbers; null: a full bucket.
    state   bigint[],
    -- What the last batch asked for: numbers, then how many requests. Read by the statement that writes it.
    asked   bigint[],
    -- Microseconds since the epoch: from then on the bucket equals no bucket and may be swept.
    expires bigint   NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- The gateways that use the store, by their heartbeats.
CREATE UNLOGGED TABLE IF NOT EXISTS tollgate_gateways (
    id   bigint NOT NULL PRIMARY KEY,
    seen timestamptz NOT NULL
);

-- Grants as many of equal requests as a token bucket can pay: a translation of src/limit/token_bucket.rs. `fresh` is
-- the state that the requests would leave of a full bucket, `asked` is price, need, count, floor, lowest, most.
-- The new state ends in how many were granted. `at` never decreases, and a clock behind it mints nothing.
CREATE OR REPLACE FUNCTION tollgate_take(old bigint[], fresh bigint[], asked bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    n       bigint := fresh[4];
    p       bigint := fresh[5];
    brim    bigint := fresh[6];
    moment  bigint := fresh[8];
    level   bigint;
    granted bigint := 0;
    units   bigint;
BEGIN
    IF old IS NULL OR old[1] <> 1 OR old[2] <> 1 THEN
        RETURN fresh;
    END IF;
    level := old[7];
    -- The elapsed time is clamped to the time to full before it is multiplied.
    IF level >= old[6] OR moment - old[8] >= (old[6] - level + old[4] - 1) / old[4] THEN
        RETURN fresh;
    ELSIF moment > old[8] THEN
        level := level + (moment - old[8]) * old[4];
    END IF;
    IF old[4] <> n OR old[5] <> p OR old[6] <> brim THEN
        -- Changed numbers: whole units as they stand, rounded down, clamped, never added to.
        units := level / old[5] - CASE WHEN level < 0 AND level % old[5] <> 0 THEN 1 ELSE 0 END;
        IF units <= asked[5] / p - 1 THEN
            level := asked[5];
        ELSE
            level := least(greatest(least(units, asked[6]) * p, asked[5]), brim);
        END IF;
    END IF;
    IF level >= asked[2] THEN
        granted := least(asked[3], (level - asked[2]) / asked[1] + 1);
    END IF;
    IF granted = 0 THEN
        -- A refused request changes nothing but what is told.
        RETURN ARRAY[1, 1, fresh[3], n, p, brim, level, greatest(moment, old[8]), 0];
    END IF;
    RETURN ARRAY[1, 1, fresh[3], n, p, brim, level - granted * asked[1], greatest(moment, old[8]), granted];
END
$$;

-- Requests with one token bucket each, at most one group of equal requests a bucket: all of them in one statement. In a
-- function, as its plan is then kept by the server, whoever pools the connections: planning costs more than deciding.
-- Keys come sorted: two gateways that send the same buckets do not deadlock. The clock is read before any lock is waited
-- for, which is only stricter. `terms` has nine numbers for each kind of request: n, p, brim, price, need, lowest, most,
-- how long its row stands, how many a full bucket grants; `term_of` counts from zero.
-- Answers now, then of each bucket the level after, then the moments, then how many were granted.
CREATE OR REPLACE FUNCTION tollgate_draw(
    keys bytea[], terms bigint[], term_of smallint[], counts bigint[], fingerprint bigint, pinned bigint
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := coalesce(pinned, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    answer bigint[];
BEGIN
    WITH drawn AS (
        INSERT INTO tollgate_buckets AS bucket (key, state, asked, expires)
        SELECT want.key,
               ARRAY[1, 1, fingerprint, t.n, t.p, t.brim,
                     t.brim - least(want.count, t.fresh) * t.price, moment, least(want.count, t.fresh)],
               ARRAY[t.price, t.need, want.count, t.lowest, t.lowest, t.most],
               moment + t.lasts
        FROM unnest(keys, term_of, counts) AS want (key, term, count),
             LATERAL (SELECT terms[want.term * 9 + 1] AS n, terms[want.term * 9 + 2] AS p,
                             terms[want.term * 9 + 3] AS brim, terms[want.term * 9 + 4] AS price,
                             terms[want.term * 9 + 5] AS need, terms[want.term * 9 + 6] AS lowest,
                             terms[want.term * 9 + 7] AS most, terms[want.term * 9 + 8] AS lasts,
                             terms[want.term * 9 + 9] AS fresh) AS t
        ON CONFLICT (key) DO UPDATE SET
            state = tollgate_take(bucket.state, excluded.state, excluded.asked),
            asked = excluded.asked,
            expires = greatest(bucket.expires, excluded.expires)
        RETURNING bucket.state
    )
    SELECT moment || array_agg(state[7]) || array_agg(state[8]) || array_agg(state[9]) INTO answer FROM drawn;
    RETURN answer;
END
$$;
