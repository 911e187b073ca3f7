-- Read on from the floor of each lane, and claim what was read, in one statement.
--
-- Safe under concurrency: a lane that was lost, or is not under the epoch we know, gives nothing. Rows are not locked;
-- nobody else may publish from a lane, and settling asks for owner and epoch again. The claim is durable before the
-- caller hears of it, whatever the session's settings (F-durable claim): set_config holds for this transaction alone.
-- What is not due is not claimed: it will not be published from this batch, and costs no write.
--
-- An index scan a lane, from its floor (F-floor); one scan over all lanes in the order of ids would be six times dearer.
-- A row is taken while the budget of bytes is not used up before it, so the first always fits; urgent lanes come first.
--
-- The budget is asked twice. What a row holds is known for certain only when its payload has been read out of TOAST and
-- unpacked, and to do so for every row that might come took longer than any time limit where payloads are large. So it
-- is done for those alone that the stored size lets through, which is never more than the true one; of what is
-- compressed four times of it is taken, since it can be a hundred times larger in memory. So how much came says nothing of
-- whether something was left out; `found` does, which counts what there was within the limits of the lanes.
WITH mine AS MATERIALIZED (
    SELECT w.lane, w.epoch, w.floor, w.ceiling, w.most
    FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[])
         AS w (lane, epoch, floor, ceiling, most)
    JOIN oncommit.outbox_lane l ON l.sink = $6::text AND l.lane = w.lane AND l.owner = $7::uuid AND l.epoch = w.epoch
), found AS (
    SELECT r.*, mine.epoch, sum(r.stored) OVER (ORDER BY r.lane < 64, r.nth, r.lane) - r.stored AS before,
           count(*) OVER () AS found
    FROM mine
    CROSS JOIN LATERAL (
        SELECT o.*, row_number() OVER (ORDER BY o.id) AS nth,
               200 + pg_column_size(o.headers) + coalesce(
                   pg_column_size(o.payload) * CASE WHEN pg_column_compression(o.payload) IS NULL THEN 1 ELSE 4 END,
                   pg_column_size(o.data) * CASE WHEN pg_column_compression(o.data) IS NULL THEN 1 ELSE 4 END,
                   0) AS stored
        FROM oncommit.outbox o
        WHERE o.sink = $8::text AND o.lane = mine.lane AND o.id > mine.floor AND o.id <= mine.ceiling
        ORDER BY o.id
        LIMIT mine.most
    ) r
), sized AS (
    SELECT r.*, sum(r.bytes) OVER (ORDER BY r.lane < 64, r.nth, r.lane) - r.bytes AS before
    FROM (
        SELECT b.*, 200 + octet_length(b.headers) + coalesce(octet_length(b.body), 0) AS bytes
        FROM (
            SELECT lane, epoch, id, nth, found, event_id, event_type, aggregate_type, aggregate_id, topic, content_type,
                   correlation_id, causation_id, saga_id, schema_version, priority, attempts, crashes, max_attempts,
                   -- Within what clients can tell: plain SQL may have written infinity, or a year that no datetime holds.
                   greatest(least(created_at, '9999-12-30 00:00:00+00'), '0001-01-02 00:00:00+00') AS created_at,
                   oncommit.ordering_key(key, aggregate_type, aggregate_id) AS key,
                   -- Each for itself: before PostgreSQL 17, infinity less a time was an error.
                   CASE WHEN available_at IS NULL THEN 0::float8
                        ELSE extract(epoch FROM available_at)::float8 - extract(epoch FROM oncommit.now())::float8
                   END AS wait,
                   headers::text AS headers,
                   coalesce(convert_to(payload::text, 'UTF8'), data) AS body,
                   payload IS NOT NULL AS is_json
            FROM found
            WHERE before <= $9::bigint
            -- So that each body is made once.
            OFFSET 0
        ) b
    ) r
), taken AS MATERIALIZED (
    SELECT * FROM sized WHERE before <= $10::bigint
), claim AS (
    INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)
    SELECT $11::uuid, $12::text, $13::bigint, t.lane, t.epoch, min(t.id), max(t.id), count(*),
           $14::boolean
    FROM taken t
    WHERE t.wait <= 0
      AND set_config('synchronous_commit',
                     replace(current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL
    GROUP BY t.lane, t.epoch
)
SELECT lane, epoch, id, event_id, event_type, aggregate_type, aggregate_id, topic, content_type, correlation_id,
       causation_id, saga_id, schema_version, priority, attempts, crashes, max_attempts, created_at, key, wait,
       headers, body, is_json, bytes, found
FROM taken
ORDER BY lane < 64, lane, id
