-- Who holds locks on our tables: named in the error of a migrator that gave up waiting. A plain read of shared memory.
SELECT DISTINCT
    a.pid,
    coalesce(nullif(a.application_name, ''), 'unnamed') AS application,
    coalesce(a.state, 'hidden') AS state,
    pg_catalog.date_trunc('second', a.xact_start) AS since
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
  AND l.granted
  AND c.relnamespace = pg_catalog.to_regnamespace('oncommit')
  AND l.pid <> pg_catalog.pg_backend_pid()
ORDER BY since NULLS LAST
LIMIT 3;
