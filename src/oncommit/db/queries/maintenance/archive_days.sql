-- The days of the archive that are past their time, oldest first, with how far their end has come. Reads only.
--
-- A day is past its time when it ended so many days ago, on this database's clock; days are those of UTC, as
-- make_archive_partition() cuts them. Only tables with the names that it gives are looked at. One that stands alone has
-- been detached: by us, if it is marked (mark_day.sql), which every detach of ours is preceded by; otherwise by somebody
-- who wants to keep it. `late`: more than a day past its time, so something has held it up.
SELECT right(t.relname, 8) AS day, i.inhrelid IS NOT NULL AS attached, coalesce(i.inhdetachpending, false) AS pending,
       coalesce(obj_description(t.oid, 'pg_class') = 'expired: the maintenance detaches and drops it', false) AS marked,
       right(t.relname, 8)
       < to_char((oncommit.now() AT TIME ZONE 'UTC')::date - $1::integer - 1, 'YYYYMMDD') COLLATE "C" AS late
FROM pg_class t
LEFT JOIN pg_inherits i ON i.inhrelid = t.oid AND i.inhparent = to_regclass('oncommit.outbox_archive')
WHERE t.relnamespace = to_regnamespace('oncommit') AND t.relkind = 'r' AND t.relname ~ '^outbox_archive_[0-9]{8}$'
  AND right(t.relname, 8)
      < to_char((oncommit.now() AT TIME ZONE 'UTC')::date - $1, 'YYYYMMDD') COLLATE "C"
ORDER BY day
