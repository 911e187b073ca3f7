-- When the next delayed event is due, in seconds of this database's clock; nothing waits: no row. One entry of the index.
--
-- $1 is where to begin: what was moved leaves dead entries at the head of the index for as long as some old transaction
-- holds back vacuum, and each look would wade through them. Null: from the first. $2 are
-- events that were set aside.
SELECT extract(epoch FROM d.not_before - oncommit.now())::float8 AS seconds, d.event_id
FROM oncommit.outbox_delayed d
WHERE d.not_before >= coalesce($1::timestamptz, '-infinity') AND d.event_id <> ALL ($2::uuid[])
ORDER BY d.not_before, d.id
LIMIT 1
