-- A batch of archived events is published again: as new events with new ids, that name the old one in the header
-- replay_of. Nothing of the payload leaves the server, so its bytes are the same, and no client needs room for it.
--
-- In the order in which they were archived, which for one key is the order in which they were delivered, and by id where
-- one statement archived several. It reads a narrow window of time, not the rest of the archive, and goes on behind the
-- last one of the batch before. The bytes are as they are stored; one event always goes.
--
-- All or nothing, in one statement; what is written meanwhile is archived later than the end of the range, so a replay
-- never meets its own events. Two replays at once publish twice: each makes its own ids.
--
-- What the writer of an event vouches for was looked at when the old one was written, so the lane is given
-- (docs/adr/0007). The header is put behind the others as text: what stands there stays as it was, digit for digit.
WITH picked AS MATERIALIZED (
    SELECT a.archived_at, a.id, a.created_at, a.event_id, a.saga_id, a.max_attempts, a.schema_version, a.priority,
           a.sink, a.event_type, a.aggregate_type, a.aggregate_id, a.key, a.topic, a.content_type, a.correlation_id,
           a.causation_id, a.headers, a.payload, a.data,
           coalesce(pg_column_size(a.payload), pg_column_size(a.data), 0) + pg_column_size(a.headers) AS bytes
    FROM oncommit.outbox_archive a
    WHERE a.archived_at >= $1::timestamptz AND a.archived_at < $2::timestamptz
      AND ($3::text[] IS NULL OR a.event_type = ANY ($3))
      AND ($4::text IS NULL OR a.aggregate_type = $4)
      AND ($5::text IS NULL OR a.aggregate_id = $5)
      AND ($6::text IS NULL OR a.topic = $6)
      AND ($7::text IS NULL OR a.sink = $7)
      AND (a.archived_at, a.id) > ($8::timestamptz, $9::bigint)
    ORDER BY a.archived_at, a.id
    LIMIT $10::integer
), fitting AS MATERIALIZED (
    SELECT s.*
    FROM (SELECT p.*, sum(p.bytes) OVER (ORDER BY p.archived_at, p.id) - p.bytes AS before FROM picked p) s
    WHERE s.before < $11::bigint
), fresh AS MATERIALIZED (
    SELECT f.*, oncommit.make_id() AS new_id FROM fitting f
), published AS (
    INSERT INTO oncommit.outbox (
        created_at, event_id, saga_id, max_attempts, schema_version, priority, sink, event_type, aggregate_type,
        aggregate_id, key, topic, content_type, correlation_id, causation_id, headers, payload, data, lane)
    SELECT
        f.created_at, f.new_id, f.saga_id, f.max_attempts, f.schema_version, f.priority, f.sink, f.event_type,
        f.aggregate_type, f.aggregate_id, f.key, coalesce($12::text, f.topic), f.content_type, f.correlation_id,
        f.causation_id,
        (regexp_replace(f.headers::text, '\s*\}\s*$', '')
         || CASE WHEN f.headers::text ~ '^\s*\{\s*\}\s*$' THEN '' ELSE ',' END
         || '"replay_of":"' || f.event_id || '"}')::json,
        f.payload, f.data,
        oncommit.lane_of(f.priority, f.key, f.aggregate_type, f.aggregate_id, f.new_id)
    FROM fresh f
    ORDER BY f.archived_at, f.id
)
SELECT (SELECT count(*) FROM picked) AS picked, (SELECT count(*) FROM fitting) AS published,
       last.archived_at, last.id
FROM (SELECT 1) one
LEFT JOIN LATERAL (
    SELECT f.archived_at, f.id FROM fitting f ORDER BY f.archived_at DESC, f.id DESC LIMIT 1
) last ON true
