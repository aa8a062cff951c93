-- Looks at one page of the table and deletes those buckets that have long been full again: nothing is lost with them.
-- Rows in use are left alone. Answers where the page ended, how many rows it had and how many of them are gone.
WITH page AS MATERIALIZED (
    SELECT key, expires FROM tollgate_buckets WHERE key > $1 ORDER BY key LIMIT 500
), full_again AS MATERIALIZED (
    SELECT bucket.key FROM tollgate_buckets AS bucket JOIN page ON page.key = bucket.key
    WHERE bucket.expires < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000
    FOR UPDATE OF bucket SKIP LOCKED
), gone AS (
    DELETE FROM tollgate_buckets WHERE key IN (SELECT key FROM full_again) RETURNING 1
)
SELECT (SELECT key FROM page ORDER BY key DESC LIMIT 1), (SELECT count(*) FROM page), (SELECT count(*) FROM gone)
