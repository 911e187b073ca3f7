-- One event by its id, through the unique indexes and the archive's. Where the last answer of a broker was lost it can be
-- on record twice; the one that still wants something comes first. Reads only.
SELECT
    e.id, e.event_id, e.state, e.sink, e.lane, e.priority, e.event_type, e.aggregate_type, e.aggregate_id, e.key, e.topic,
    e.schema_version, e.correlation_id, e.causation_id, e.saga_id, e.attempts, e.crashes, e.max_attempts,
    e.created_at, e.available_at, e.claimed_by, e.claimed_at, e.sent_at, e.archived_at, e.failed_at, e.last_error,
    e.content_type,
    e.headers::text AS headers, e.payload::text AS payload, e.data
FROM oncommit.events AS e
WHERE e.event_id = $1::uuid
ORDER BY e.state = 'sent', e.id
LIMIT 1;
