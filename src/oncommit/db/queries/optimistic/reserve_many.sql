-- A few events in one statement, each reserved as reserve_one.sql would; in the order of the call, as add_many.sql.
--
-- Rows of one key are reserved all or none: they share their lane, and every question here has one answer for the whole
-- statement. Also what the sequence says, which moves while rows are written: it is asked once (MATERIALIZED), or the
-- first of a key could be left to the relay and the second be sent before it.
WITH drawn AS MATERIALIZED (
    SELECT s.last_value FROM oncommit.outbox_id_seq s
)
INSERT INTO oncommit.outbox (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, lane,
    state, available_at)
SELECT
    v.event_id, v.sink, v.priority, v.event_type, v.aggregate_type, v.aggregate_id, v.key, v.topic, v.content_type,
    v.correlation_id, v.causation_id, v.saga_id, v.schema_version, v.max_attempts, v.headers::json, v.payload::json, v.data,
    place.lane,
    CASE WHEN free.until IS NULL THEN 'pending' ELSE 'optimistic' END, free.until
FROM unnest(
    $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::uuid[], $13::integer[], $14::integer[], $15::text[], $16::text[], $17::bytea[]
) WITH ORDINALITY AS v (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, ord)
CROSS JOIN LATERAL (
    SELECT oncommit.lane_of(v.priority, v.key, v.aggregate_type, v.aggregate_id, v.event_id) AS lane OFFSET 0
) AS place
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT l.settled_to FROM oncommit.outbox_lane l WHERE l.sink = v.sink AND l.lane = place.lane), 0)
    OFFSET 0
) AS empty (up_to)
CROSS JOIN LATERAL (
    SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
           AND current_setting('synchronous_commit') NOT IN ('off', 'local')
           AND (SELECT d.last_value BETWEEN empty.up_to AND empty.up_to + 50000 FROM drawn d)
           AND (SELECT o.id FROM oncommit.outbox o
                WHERE o.sink = v.sink AND o.lane = place.lane AND o.id > empty.up_to
                ORDER BY o.id LIMIT 1) IS NULL
           THEN oncommit.now() + make_interval(secs => $18::float8) END
    OFFSET 0
) AS free (until)
ORDER BY v.ord
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, state = 'optimistic' AS reserved
