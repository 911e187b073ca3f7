-- Days from today to a week ahead for which the archive has no partition. `lies_beside`: there is a table of its name that
-- is none; somebody has detached it, and making the day would find it and do nothing. Reads only.
SELECT d.day, t.oid IS NOT NULL AS lies_beside
FROM (
    SELECT (oncommit.now() AT TIME ZONE 'UTC')::date + ahead AS day FROM generate_series(0, $1::integer) AS ahead
) d
LEFT JOIN pg_class t
    ON t.relname = 'outbox_archive_' || to_char(d.day, 'YYYYMMDD')
   AND t.relnamespace = to_regnamespace('oncommit')
WHERE NOT EXISTS (
    SELECT FROM pg_inherits i
    WHERE i.inhparent = to_regclass('oncommit.outbox_archive') AND i.inhrelid = t.oid AND NOT i.inhdetachpending)
ORDER BY d.day
