-- Deletes some buckets that have long been full again: nothing is lost with them. Rows in use are left alone.
DELETE FROM tollgate_buckets
WHERE key IN (
    SELECT key FROM tollgate_buckets
    WHERE key >= $1 AND expires < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000
    ORDER BY key LIMIT 500
    FOR UPDATE SKIP LOCKED
)
RETURNING key
