-- What happened to one thing, in the order in which it was written, which is the order of ids. What is not due yet has no
-- place yet and gets a later one than all others. Reads only, one snapshot, through the archive's index on aggregate ids.
SELECT
    e.id, e.event_id, e.state, e.sink, e.lane, e.priority, e.event_type, e.aggregate_type, e.aggregate_id, e.key, e.topic,
    e.schema_version, e.correlation_id, e.causation_id, e.saga_id, e.attempts, e.crashes, e.max_attempts,
    e.created_at, e.available_at, e.claimed_by, e.claimed_at, e.sent_at, e.archived_at, e.failed_at, e.last_error,
    e.content_type,
    CASE WHEN $1::boolean THEN e.headers::text END AS headers,
    CASE WHEN $1 THEN e.payload::text END AS payload,
    CASE WHEN $1 THEN e.data END AS data
FROM oncommit.events AS e
WHERE e.aggregate_type = $2::text
  AND e.aggregate_id = $3::text
  AND ($4::timestamptz IS NULL
       OR (coalesce(e.id, 9223372036854775807), e.created_at, e.event_id) > ($5::bigint, $4, $6::uuid))
ORDER BY coalesce(e.id, 9223372036854775807), e.created_at, e.event_id
LIMIT $7;
