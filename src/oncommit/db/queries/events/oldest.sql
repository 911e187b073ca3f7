-- A page of events, oldest first; otherwise as newest.sql. Reads only, one snapshot.
SELECT
    e.id, e.event_id, e.state, e.sink, e.lane, e.priority, e.event_type, e.aggregate_type, e.aggregate_id, e.key, e.topic,
    e.schema_version, e.correlation_id, e.causation_id, e.saga_id, e.attempts, e.crashes, e.max_attempts,
    e.created_at, e.available_at, e.claimed_by, e.claimed_at, e.sent_at, e.archived_at, e.failed_at, e.last_error,
    e.content_type,
    CASE WHEN $1::boolean THEN e.headers::text END AS headers,
    CASE WHEN $1 THEN e.payload::text END AS payload,
    CASE WHEN $1 THEN e.data END AS data
FROM oncommit.events AS e
WHERE ($2::text[] IS NULL OR e.state = ANY ($2))
  AND ($3::text[] IS NULL OR e.event_type = ANY ($3))
  AND ($4::text IS NULL OR e.aggregate_type = $4)
  AND ($5::text IS NULL OR e.aggregate_id = $5)
  AND ($6::text IS NULL OR e.key = $6)
  AND ($7::text IS NULL OR e.topic = $7)
  AND ($8::text IS NULL OR e.sink = $8)
  AND ($9::text IS NULL OR e.correlation_id = $9)
  AND ($10::timestamptz IS NULL OR e.created_at < $10)
  AND ($11::timestamptz IS NULL OR e.created_at >= $11)
  AND ($11::timestamptz IS NULL OR e.archived_at IS NULL OR e.archived_at >= $11)
  AND ($12::timestamptz IS NULL OR (e.created_at, coalesce(e.id, 0), e.event_id) > ($12, $13::bigint, $14::uuid))
ORDER BY e.created_at, coalesce(e.id, 0), e.event_id
LIMIT $15;
