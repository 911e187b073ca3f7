-- Delayed events whose time has come become live ones, in the order of their times and, where those are the same, in the
-- order in which they were written. The new id is their place in the order of their key from now on.
--
-- Under the fence (fence.sql) there is one mover at a time, so that ids are drawn in that order. Should there be two after
-- all, none is moved twice: a row that is locked is passed over, one that is gone is not found. What somebody else is
-- changing at this moment is left for the next time.
--
-- An event that is live already, because two transactions added it just before and just after its time, only leaves
-- outbox_delayed. One that has been delivered since is looked for in a second statement: outbox/take_back.sql says why.
-- It comes after the insert, in this transaction.
--
-- $1 and $2 as in next_due.sql. The bytes are as they are stored, so large ones are not read to be counted; one row always goes.
WITH due AS MATERIALIZED (
    SELECT d.not_before, d.id,
           coalesce(pg_column_size(d.payload), pg_column_size(d.data), 0) + pg_column_size(d.headers) AS bytes
    FROM oncommit.outbox_delayed d
    WHERE d.not_before >= coalesce($1::timestamptz, '-infinity') AND d.not_before <= oncommit.now()
      AND d.event_id <> ALL ($2::uuid[])
    ORDER BY d.not_before, d.id
    LIMIT $3::integer
    FOR UPDATE SKIP LOCKED
), fitting AS MATERIALIZED (
    SELECT s.not_before, s.id
    FROM (
        SELECT due.not_before, due.id, sum(due.bytes) OVER (ORDER BY due.not_before, due.id) - due.bytes AS before
        FROM due
    ) s
    WHERE s.before < $4::bigint
), gone AS (
    DELETE FROM oncommit.outbox_delayed d
    USING fitting f
    WHERE d.not_before = f.not_before AND d.id = f.id
    RETURNING d.not_before, d.id, d.created_at, d.event_id, d.saga_id, d.max_attempts, d.schema_version, d.priority,
              d.sink, d.event_type, d.aggregate_type, d.aggregate_id, d.key, d.topic, d.content_type,
              d.correlation_id, d.causation_id, d.headers, d.payload, d.data
), live AS (
    INSERT INTO oncommit.outbox (
        created_at, event_id, saga_id, max_attempts, schema_version, priority, sink, event_type, aggregate_type,
        aggregate_id, key, topic, content_type, correlation_id, causation_id, headers, payload, data, lane)
    SELECT
        g.created_at, g.event_id, g.saga_id, g.max_attempts, g.schema_version, g.priority, g.sink, g.event_type,
        g.aggregate_type, g.aggregate_id, g.key, g.topic, g.content_type, g.correlation_id, g.causation_id,
        g.headers, g.payload, g.data,
        oncommit.lane_of(g.priority, g.key, g.aggregate_type, g.aggregate_id, g.event_id)
    FROM gone g
    ORDER BY g.not_before, g.id
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id, sink
)
SELECT ARRAY(SELECT event_id FROM live)::uuid[] AS moved, ARRAY(SELECT DISTINCT sink FROM live)::text[] AS sinks,
       (SELECT count(*) FROM gone) AS gone, (SELECT max(not_before) FROM gone) AS last
