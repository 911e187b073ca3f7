-- One migrator at a time, each schema on its own. Ends with the transaction, so it survives a pooler in transaction mode
-- and a crash leaves nothing to clean up. Waits no longer than lock_timeout.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('oncommit:migrate', 0));
