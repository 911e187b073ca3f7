-- Step 2 of watching for late commits: who may have drawn an id and not committed yet. Everybody who writes to outbox holds
-- this lock from before he draws his id until his transaction ends, prepared transactions included.
SELECT DISTINCT k.virtualtransaction AS holder
FROM pg_catalog.pg_locks k
WHERE k.locktype = 'relation'
  AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND k.relation = 'oncommit.outbox'::regclass
  AND k.mode = 'RowExclusiveLock'
  AND k.granted
