-- Acknowledged events leave for the archive, by their own sender.
--
-- The fence (O-lapse): a row goes only while its reservation holds. After that it is the relay's, which may be sending it
-- at this moment, or have counted an attempt. Both at once wait for each other on the row, and the second finds it gone.
-- No lane is locked: whoever takes the lane over sees the row as not due, or not at all.
--
-- Named columns on both sides, as in relay/settle.sql.
WITH acknowledged AS MATERIALIZED (
    SELECT a.sink, a.lane, a.id, a.age
    FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::float8[]) AS a (sink, lane, id, age)
), gone AS (
    DELETE FROM oncommit.outbox o
    USING acknowledged a
    WHERE o.sink = a.sink AND o.lane = a.lane AND o.id = a.id
      AND o.state = 'optimistic' AND o.available_at > oncommit.now()
    RETURNING o.id, o.created_at, o.event_id, o.saga_id, o.attempts, o.crashes, o.max_attempts, o.schema_version,
              o.priority, o.lane, o.sink, o.event_type, o.aggregate_type, o.aggregate_id, o.key, o.topic,
              o.content_type, o.correlation_id, o.causation_id, o.headers, o.payload, o.data, o.last_error,
              oncommit.now() - make_interval(secs => a.age) AS sent_at
), archived AS (
    INSERT INTO oncommit.outbox_archive (
        id, created_at, event_id, saga_id, attempts, crashes, max_attempts, schema_version,
        priority, lane, sink, event_type, aggregate_type, aggregate_id, key, topic,
        content_type, correlation_id, causation_id, headers, payload, data, last_error, sent_at)
    SELECT id, created_at, event_id, saga_id, attempts, crashes, max_attempts, schema_version,
           priority, lane, sink, event_type, aggregate_type, aggregate_id, key, topic,
           content_type, correlation_id, causation_id, headers, payload, data, last_error, sent_at
    FROM gone
    WHERE $5::boolean
)
SELECT event_id FROM gone
