-- Read on from the floor of each lane, and claim what was read, in one statement.
--
-- Safe under concurrency: a lane that was lost, or is not under the epoch we know, gives nothing. Rows are not locked;
-- nobody else may publish from a lane, and settling asks for owner and epoch again. The claim is durable before the
-- caller hears of it, whatever the session's settings (F-durable claim): set_config holds for this transaction alone.
--
-- An index scan a lane, from its floor (F-floor); one scan over all lanes in the order of ids would be six times dearer.
-- A row is taken while the budget of bytes is not used up before it, so the first always fits; urgent lanes come first.
WITH mine AS MATERIALIZED (
    SELECT w.lane, w.epoch, w.floor, w.ceiling, w.most
    FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[])
         AS w (lane, epoch, floor, ceiling, most)
    JOIN oncommit.outbox_lane l ON l.sink = $6::text AND l.lane = w.lane AND l.owner = $7::uuid AND l.epoch = w.epoch
), found AS MATERIALIZED (
    SELECT r.*, mine.epoch, sum(r.bytes) OVER (ORDER BY r.lane < 64, r.nth, r.lane) - r.bytes AS before
    FROM mine
    CROSS JOIN LATERAL (
        SELECT o.*, row_number() OVER (ORDER BY o.id) AS nth
        FROM oncommit.outbox_wire o
        WHERE o.sink = $8::text AND o.lane = mine.lane AND o.id > mine.floor AND o.id <= mine.ceiling
        ORDER BY o.id
        LIMIT mine.most
    ) r
), taken AS MATERIALIZED (
    SELECT * FROM found WHERE before <= $9::bigint
), claim AS (
    INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)
    SELECT $10::uuid, $11::text, $12::bigint, t.lane, t.epoch, min(t.id), max(t.id), count(*),
           $13::boolean
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
