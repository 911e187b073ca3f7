-- Strict order for a call with many keys: wait for the end of every strict writer, and let every other wait for ours.
--
-- One lock where lock_keys.sql would take thousands: the table of locks is shared by the whole server, and a transaction
-- that fills it makes others fail. It conflicts with the shared mode that lock_keys.sql takes first. A transaction that
-- already wrote a few keys and now comes here while another does the same deadlocks with it, which PostgreSQL ends.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('oncommit.order', 0))
