-- Many events that no database has seen before, in one statement; otherwise as add_one.sql.
--
-- ORDER BY the ordinality: ids are drawn in the order of the call, also where the planner would rather not.
INSERT INTO oncommit.outbox (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, lane)
SELECT
    v.event_id, v.sink, v.priority, v.event_type, v.aggregate_type, v.aggregate_id, v.key, v.topic, v.content_type,
    v.correlation_id, v.causation_id, v.saga_id, v.schema_version, v.max_attempts, v.headers::json, v.payload::json, v.data,
    oncommit.lane_of(v.priority, v.key, v.aggregate_type, v.aggregate_id, v.event_id)
FROM unnest(
    $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::uuid[], $13::integer[], $14::integer[], $15::text[], $16::text[], $17::bytea[]
) WITH ORDINALITY AS v (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, ord)
ORDER BY v.ord
ON CONFLICT (event_id) DO NOTHING
