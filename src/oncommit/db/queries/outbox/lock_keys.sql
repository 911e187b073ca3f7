-- Strict order: whoever writes a key waits here for the end of the transaction that wrote it before, so that the order
-- of ids is the order of commits even where the application takes no lock of its own.
--
-- A statement of its own, before the insert draws its ids. Sorted, so that two calls with the same keys cannot deadlock.
-- Transaction-level: gone with the transaction, and safe through a pooler in transaction mode. Two keys that share a
-- hash wait for each other, which costs time and nothing else.
SELECT pg_catalog.pg_advisory_xact_lock(sorted.lock)
FROM (
    SELECT DISTINCT pg_catalog.hashtextextended('oncommit.order:' || k.key, 0) AS lock
    FROM unnest($1::text[]) AS k (key)
    ORDER BY 1
) AS sorted
