-- Strict order: whoever writes a key waits here for the end of the transaction that wrote it before, so that the order
-- of ids is the order of commits even where the application takes no lock of its own.
--
-- A statement of its own, before the insert draws its ids. Sorted, so that two calls with the same keys cannot deadlock.
-- Transaction-level: gone with the transaction, and safe through a pooler in transaction mode. Two keys that share a
-- hash wait for each other, which costs time and nothing else. First, in shared mode, the lock of all keys: a call with
-- too many keys for a lock each takes that one alone (lock_all_keys.sql).
SELECT
    CASE
        WHEN sorted.lock IS NULL
        THEN pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended('oncommit.order', 0))
        ELSE pg_catalog.pg_advisory_xact_lock(sorted.lock)
    END
FROM (
    SELECT NULL::bigint AS lock
    UNION ALL
    SELECT DISTINCT pg_catalog.hashtextextended('oncommit.order:' || k.key, 0)
    FROM unnest($1::text[]) AS k (key)
    ORDER BY 1 NULLS FIRST
) AS sorted
