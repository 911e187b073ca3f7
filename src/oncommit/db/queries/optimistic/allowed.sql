-- Whether this role may look at what reserve_one.sql looks at; asked once, before the first add, so that a missing grant
-- costs the reservation and not the caller's transaction. Reads the catalog alone.
SELECT pg_catalog.has_table_privilege('oncommit.outbox', 'SELECT')
   AND pg_catalog.has_table_privilege('oncommit.outbox_lane', 'SELECT')
   AND pg_catalog.has_sequence_privilege('oncommit.outbox_id_seq', 'SELECT') AS allowed
