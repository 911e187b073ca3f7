-- Acknowledged events leave for the archive, and the batch's claim ends: all or nothing, in one statement.
--
-- The fence: lane rows are locked FOR KEY SHARE to the end of the transaction, where owner and epoch still hold
-- (Z-fence). A take-over skips such a lane; one that came first makes this wait, read the lane again and leave its rows
-- alone. The DELETE joins the fence, so no row goes before its lane is locked.
--
-- Named columns on both sides: the two tables may come to differ.
WITH batch AS MATERIALIZED (
    SELECT w.lane, w.epoch FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
), fence AS MATERIALIZED (
    SELECT l.lane
    FROM oncommit.outbox_lane l
    JOIN batch ON batch.lane = l.lane AND batch.epoch = l.epoch
    WHERE l.sink = $3::text AND l.owner = $4::uuid
    ORDER BY l.lane
    FOR KEY SHARE OF l
), acknowledged AS MATERIALIZED (
    SELECT a.lane, a.id, a.age FROM unnest($5::smallint[], $6::bigint[], $7::float8[]) AS a (lane, id, age)
), gone AS (
    DELETE FROM oncommit.outbox o
    USING acknowledged a, fence
    WHERE o.sink = $8::text AND o.lane = a.lane AND o.id = a.id AND fence.lane = a.lane
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
    WHERE $9::boolean
), unclaimed AS (
    DELETE FROM oncommit.outbox_claim c
    WHERE c.relay_id = $10::uuid AND c.sink = $11::text AND c.batch = $12::bigint
)
SELECT (SELECT count(*) FROM gone) AS settled, ARRAY(SELECT lane FROM fence)::smallint[] AS held
