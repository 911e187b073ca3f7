-- What this transaction sees of events that were added and not yet sent: its own before it commits, and everybody's
-- committed ones. One statement, so one snapshot: an event that is moved meanwhile is seen once.
--
-- Values come as text and microseconds, so that no codec or time zone of the application's connection touches them.
-- Live ones in the order of their ids; a delayed one, whose ids are another row of numbers, where its time of writing
-- puts it, behind what the same statement wrote to go at once.
SELECT
    e.event_id::text, e.event_type, e.payload::text, e.data, e.content_type, e.aggregate_type, e.aggregate_id, e.key,
    e.topic, e.sink, e.priority, e.headers::text, e.schema_version, e.correlation_id, e.causation_id, e.saga_id::text,
    e.max_attempts, (extract(epoch FROM e.not_before) * 1000000)::bigint
FROM (
    SELECT
        o.created_at, o.id, o.event_id, o.event_type, o.payload, o.data, o.content_type, o.aggregate_type,
        o.aggregate_id, o.key, o.topic, o.sink, o.priority, o.headers, o.schema_version, o.correlation_id,
        o.causation_id, o.saga_id, o.max_attempts, NULL::timestamptz AS not_before
    FROM oncommit.outbox o
    UNION ALL
    SELECT
        w.created_at, w.id, w.event_id, w.event_type, w.payload, w.data, w.content_type, w.aggregate_type,
        w.aggregate_id, w.key, w.topic, w.sink, w.priority, w.headers, w.schema_version, w.correlation_id,
        w.causation_id, w.saga_id, w.max_attempts, w.not_before
    FROM oncommit.outbox_delayed w
) AS e
ORDER BY CASE WHEN e.not_before IS NULL THEN e.id END NULLS LAST, e.created_at, e.id
