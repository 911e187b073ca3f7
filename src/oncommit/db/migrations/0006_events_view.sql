-- Every event with its state, wherever it lies. For people and for lists; the relay never reads it.
--
-- Safe beside a running relay: one statement reads one snapshot, and settling moves a row in one statement, so an event
-- is never seen twice or missed.

CREATE VIEW oncommit.events AS
SELECT
    o.id, o.event_id,
    CASE
        WHEN c.claimed_at IS NOT NULL THEN 'claimed'
        -- A reservation or a back-off that has run out makes the event pending again; nobody has to write that down.
        WHEN o.state IN ('optimistic', 'failed') AND o.available_at <= oncommit.now() THEN 'pending'
        ELSE o.state
    END AS state,
    o.sink, o.lane, o.priority,
    oncommit.ordering_key(o.key, o.aggregate_type, o.aggregate_id) AS key,
    o.event_type, o.topic, o.aggregate_type, o.aggregate_id,
    o.payload, o.data, o.content_type, o.headers, o.schema_version,
    o.correlation_id, o.causation_id, o.saga_id,
    o.attempts, o.crashes, o.max_attempts,
    o.created_at, o.available_at, c.name AS claimed_by, c.claimed_at,
    NULL::timestamptz AS sent_at, NULL::timestamptz AS archived_at, d.died_at AS failed_at,
    o.last_error
FROM oncommit.outbox o
LEFT JOIN LATERAL (
    SELECT coalesce(r.name, k.relay_id::text) AS name, k.claimed_at
    FROM oncommit.outbox_claim k
    -- A claim of an owner that lost its lane says nothing any more.
    JOIN oncommit.outbox_lane l ON l.sink = k.sink AND l.lane = k.lane AND l.owner = k.relay_id AND l.epoch = k.epoch
    LEFT JOIN oncommit.outbox_relay r ON r.relay_id = k.relay_id
    WHERE k.sink = o.sink AND k.lane = o.lane AND o.id BETWEEN k.first_id AND k.last_id
    ORDER BY k.claimed_at DESC
    LIMIT 1
) c ON true
-- A parked head stays in outbox beside its record.
LEFT JOIN oncommit.dead_letter d
    ON o.state = 'dead_letter' AND d.source = 'outbox' AND d.origin = o.sink AND d.message_id = o.event_id::text
UNION ALL
SELECT
    NULL, w.event_id, 'pending',
    w.sink, NULL, w.priority,
    oncommit.ordering_key(w.key, w.aggregate_type, w.aggregate_id),
    w.event_type, w.topic, w.aggregate_type, w.aggregate_id,
    w.payload, w.data, w.content_type, w.headers, w.schema_version,
    w.correlation_id, w.causation_id, w.saga_id,
    0, 0, w.max_attempts,
    w.created_at, w.not_before, NULL, NULL,
    NULL, NULL, NULL,
    NULL
FROM oncommit.outbox_delayed w
UNION ALL
SELECT
    a.id, a.event_id, 'sent',
    a.sink, a.lane, a.priority,
    oncommit.ordering_key(a.key, a.aggregate_type, a.aggregate_id),
    a.event_type, a.topic, a.aggregate_type, a.aggregate_id,
    a.payload, a.data, a.content_type, a.headers, a.schema_version,
    a.correlation_id, a.causation_id, a.saga_id,
    a.attempts, a.crashes, a.max_attempts,
    a.created_at, NULL, NULL, NULL,
    a.sent_at, a.archived_at, NULL,
    a.last_error
FROM oncommit.outbox_archive a
UNION ALL
SELECT
    d.outbox_id, d.event_id, 'dead_letter',
    d.origin, d.lane, d.priority,
    oncommit.ordering_key(d.key, d.aggregate_type, d.aggregate_id),
    d.event_type, d.topic, d.aggregate_type, d.aggregate_id,
    d.payload, d.data, d.content_type, d.headers, d.schema_version,
    d.correlation_id, d.causation_id, d.saga_id,
    d.attempts, d.crashes, d.max_attempts,
    d.created_at, NULL, NULL, NULL,
    NULL, NULL, d.died_at,
    d.error_message
FROM oncommit.dead_letter d
WHERE d.source = 'outbox' AND d.state IN ('dead', 'replaying')
  AND NOT EXISTS (SELECT 1 FROM oncommit.outbox o WHERE o.event_id = d.event_id);

COMMENT ON VIEW oncommit.events IS 'Every event with its state: live, claimed, delayed, sent or dead.';
