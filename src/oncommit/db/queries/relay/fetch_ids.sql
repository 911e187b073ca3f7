-- Read certain rows and claim them: heads of waiting keys that have become due, late commits that a sweep has found.
-- Otherwise as fetch.sql. A row that is not there any more gives nothing.
WITH mine AS MATERIALIZED (
    SELECT w.lane, w.epoch
    FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
    JOIN oncommit.outbox_lane l ON l.sink = $3::text AND l.lane = w.lane AND l.owner = $4::uuid AND l.epoch = w.epoch
), found AS MATERIALIZED (
    SELECT o.*, mine.epoch, sum(o.bytes) OVER (ORDER BY o.lane < 64, o.id, o.lane) - o.bytes AS before
    FROM unnest($5::smallint[], $6::bigint[]) AS wanted (lane, id)
    JOIN mine ON mine.lane = wanted.lane
    JOIN oncommit.outbox_wire o ON o.sink = $7::text AND o.lane = wanted.lane AND o.id = wanted.id
), taken AS MATERIALIZED (
    SELECT * FROM found WHERE before <= $8::bigint
), claim AS (
    INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)
    SELECT $9::uuid, $10::text, $11::bigint, t.lane, t.epoch, min(t.id), max(t.id), count(*),
           false
    FROM taken t
    WHERE set_config('synchronous_commit',
                     replace(current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL
    GROUP BY t.lane, t.epoch
)
SELECT lane, epoch, id, event_id, event_type, aggregate_type, aggregate_id, topic, content_type, correlation_id,
       causation_id, saga_id, schema_version, priority, attempts, crashes, max_attempts, created_at, key, wait,
       headers, body, is_json, bytes
FROM taken
ORDER BY lane < 64, lane, id
