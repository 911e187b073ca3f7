-- Who leads the maintenance, what is due next, and how far the archive reaches, back and ahead. Reads only, one snapshot; of
-- the delayed events one entry of the index, of the archive only the catalog.
--
-- Days ahead count without a gap from today: -1 says that today has none. A lease that has run out leads nobody.
WITH seat AS (
    SELECT (s.value ->> 'owner')::uuid AS owner, (s.value ->> 'until')::timestamptz AS until
    FROM oncommit.setting s
    WHERE s.name = 'maintenance' AND (s.value ->> 'until')::timestamptz > oncommit.now()
), days AS (
    SELECT right(t.relname, 8) AS day
    FROM pg_inherits i
    JOIN pg_class t ON t.oid = i.inhrelid
    WHERE i.inhparent = to_regclass('oncommit.outbox_archive') AND NOT i.inhdetachpending
      AND t.relname ~ '^outbox_archive_[0-9]{8}$'
)
SELECT
    seat.owner AS leader_id, r.name AS leader,
    extract(epoch FROM seat.until - oncommit.now())::float8 AS lease_left_seconds,
    (SELECT extract(epoch FROM d.not_before - oncommit.now())::float8
     FROM oncommit.outbox_delayed d
     ORDER BY d.not_before, d.id
     LIMIT 1) AS next_due_seconds,
    (SELECT min(ahead) - 1
     FROM generate_series(0, 400) AS ahead
     WHERE to_char((oncommit.now() AT TIME ZONE 'UTC')::date + ahead, 'YYYYMMDD') NOT IN (SELECT days.day FROM days)
    ) AS archive_days_ahead,
    (SELECT to_date(min(days.day), 'YYYYMMDD') FROM days) AS oldest_archive_day
FROM (SELECT 1) one
LEFT JOIN seat ON true
LEFT JOIN oncommit.outbox_relay r ON r.relay_id = seat.owner
