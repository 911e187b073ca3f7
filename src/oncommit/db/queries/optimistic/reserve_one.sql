-- One event, written as add_one.sql writes it, and reserved for its writer where it may be sent right after the commit.
-- Says whether it is new, and whether it was reserved.
--
-- Reserved only where nothing of its lane is live (O-empty): then everything that was written before it under its key has
-- been acknowledged, or is dead. The look and the insert are one statement with one snapshot, and that snapshot is younger
-- than the lock under which writers of one key exclude each other; so it shows what the writer before has committed. Above
-- read committed it would be older, and the commit has to be on disk before anything is published: neither holds, no
-- reservation (O-level, O-durable).
--
-- The look begins above settled_to, below which the lane is empty for good (O-settled), or it would wade through what was
-- sent since the oldest snapshot that still holds back vacuum. Where that is too far behind, or the sequence has fallen
-- behind it, there is no look at all.
--
-- OFFSET 0: the planner would otherwise copy the question to both places where its answer is used, and the sequence may
-- have moved between the two.
INSERT INTO oncommit.outbox (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, lane,
    state, available_at)
SELECT
    v.*, place.lane,
    CASE WHEN free.until IS NULL THEN 'pending' ELSE 'optimistic' END, free.until
FROM (VALUES (
    $1::uuid, $2::text, $3::smallint, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
    $10::text, $11::text, $12::uuid, $13::integer, $14::integer, $15::text::json, $16::text::json, $17::bytea
)) AS v (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data)
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
           AND (SELECT s.last_value BETWEEN empty.up_to AND empty.up_to + 50000 FROM oncommit.outbox_id_seq s)
           AND (SELECT o.id FROM oncommit.outbox o
                WHERE o.sink = v.sink AND o.lane = place.lane AND o.id > empty.up_to
                ORDER BY o.id LIMIT 1) IS NULL
           THEN oncommit.now() + make_interval(secs => $18::float8) END
    OFFSET 0
) AS free (until)
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id, state = 'optimistic' AS reserved
