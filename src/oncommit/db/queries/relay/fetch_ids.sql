-- Read certain rows and claim them: heads of waiting keys that have become due, late commits that a sweep has found.
-- Otherwise as fetch.sql. A row that is not there any more gives nothing.
--
-- These rows can lie far apart. A claim that covered all between them would make suspects of as many when we die, to be
-- tried one by one; so there is a claim for each group that lies together.
WITH mine AS MATERIALIZED (
    SELECT w.lane, w.epoch
    FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
    JOIN oncommit.outbox_lane l ON l.sink = $3::text AND l.lane = w.lane AND l.owner = $4::uuid AND l.epoch = w.epoch
), found AS (
    SELECT r.*, sum(r.stored) OVER (ORDER BY r.lane < 64, r.nth, r.lane) - r.stored AS before
    FROM (
        SELECT o.*, mine.epoch, o.id AS nth,
               200 + pg_column_size(o.headers) + coalesce(
                   pg_column_size(o.payload) * CASE WHEN pg_column_compression(o.payload) IS NULL THEN 1 ELSE 4 END,
                   pg_column_size(o.data) * CASE WHEN pg_column_compression(o.data) IS NULL THEN 1 ELSE 4 END,
                   0) AS stored
        FROM unnest($5::smallint[], $6::bigint[]) AS wanted (lane, id)
        JOIN mine ON mine.lane = wanted.lane
        JOIN oncommit.outbox o ON o.sink = $7::text AND o.lane = wanted.lane AND o.id = wanted.id
    ) r
), sized AS (
    SELECT r.*, sum(r.bytes) OVER (ORDER BY r.lane < 64, r.nth, r.lane) - r.bytes AS before
    FROM (
        SELECT b.*, 200 + octet_length(b.headers) + coalesce(octet_length(b.body), 0) AS bytes
        FROM (
            SELECT lane, epoch, id, nth, event_id, event_type, aggregate_type, aggregate_id, topic, content_type,
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
            WHERE before <= $8::bigint
            -- So that each body is made once.
            OFFSET 0
        ) b
    ) r
), taken AS MATERIALIZED (
    SELECT * FROM sized WHERE before <= $9::bigint
), near AS (
    SELECT g.*, sum(g.far) OVER (PARTITION BY g.lane ORDER BY g.id) AS nth_group
    FROM (
        SELECT t.lane, t.epoch, t.id,
               CASE WHEN t.id - lag(t.id) OVER (PARTITION BY t.lane ORDER BY t.id) > 100 THEN 1 ELSE 0 END AS far
        FROM taken t
        WHERE t.wait <= 0
    ) g
), claim AS (
    INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)
    SELECT $10::uuid, $11::text, $12::bigint, t.lane, t.epoch, min(t.id), max(t.id), count(*),
           false
    FROM near t
    WHERE set_config('synchronous_commit',
                     replace(current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL
    GROUP BY t.lane, t.epoch, t.nth_group
)
SELECT lane, epoch, id, event_id, event_type, aggregate_type, aggregate_id, topic, content_type, correlation_id,
       causation_id, saga_id, schema_version, priority, attempts, crashes, max_attempts, created_at, key, wait,
       headers, body, is_json, bytes, 0::bigint AS found
FROM taken
ORDER BY lane < 64, lane, id
