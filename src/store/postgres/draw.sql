-- Requests with one token bucket each, at most one group of equal requests a bucket: all of them in one statement.
-- The clock is read once, before any lock is waited for, which is only stricter. Sorted by key: two gateways that
-- send the same buckets in another order do not deadlock.
WITH clock AS MATERIALIZED (
    SELECT coalesce($10, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO tollgate_buckets AS bucket (key, state, asked, expires)
SELECT want.key,
       ARRAY[1, 1, $9, want.n, want.p, want.brim, want.brim - want.fresh * want.price, clock.now, want.fresh],
       ARRAY[want.price, want.need, want.count, want.lowest, want.lowest, want.most],
       clock.now + want.lasts
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $11::bigint[], $12::bigint[], $13::bigint[])
       AS want (key, n, p, brim, price, need, count, fresh, lowest, most, lasts),
     clock
ORDER BY want.key
ON CONFLICT (key) DO UPDATE SET
    state = tollgate_take(bucket.state, excluded.state, excluded.asked),
    asked = excluded.asked,
    expires = greatest(bucket.expires, excluded.expires)
RETURNING bucket.key, bucket.state, (SELECT now FROM clock)
