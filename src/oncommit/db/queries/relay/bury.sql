-- Events that nobody will try again by itself move to the dead letters, on lanes that are still ours (as in settle.sql).
-- A parked head stays (park.sql). One that died before under the same id begins no second record: its history grows.
--
-- Where a topic is given with it, a copy goes to <topic>.dlq, as a new event that names the old: with the dead letter or
-- not at all, so that a relay that dies here has done neither; run again after a lost answer, it finds nothing that could
-- be copied. What it died of stands in the headers, behind what was there: of a name that comes twice the last counts,
-- and text says nothing of values that only jsonb would refuse. All copies for a topic are one key, so a missing topic
-- holds back one key, and never that of the event. Their lane is left out: the table looks at them as at any event, and
-- what it refuses is buried without a copy (relay/burying.py).
--
-- Whatever the row says, it finds a place: nothing else takes out of the way what nobody can send. So counts end where
-- integers do, and of two bodies, which only a writer that vouches for his rows can have given it, the payload is kept.
WITH batch AS MATERIALIZED (
    SELECT w.lane, w.epoch FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
), fence AS MATERIALIZED (
    SELECT l.lane
    FROM oncommit.outbox_lane l
    JOIN batch ON batch.lane = l.lane AND batch.epoch = l.epoch
    WHERE l.sink = $3::text AND l.owner = $4::uuid
    ORDER BY l.lane
    FOR KEY SHARE OF l
), dead AS MATERIALIZED (
    SELECT d.lane, d.id, d.reason, d.error_type, d.error, d.source_topic
    FROM unnest($5::smallint[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[])
         AS d (lane, id, reason, error_type, error, source_topic)
), gone AS (
    DELETE FROM oncommit.outbox o
    USING dead, fence
    WHERE o.sink = $11::text AND o.lane = dead.lane AND o.id = dead.id AND fence.lane = dead.lane
      AND o.state <> 'dead_letter'
    RETURNING o.*, dead.reason, dead.error_type, dead.error, dead.source_topic
), copies AS (
    INSERT INTO oncommit.outbox (
        sink, event_type, aggregate_type, aggregate_id, key, topic, content_type, correlation_id, causation_id, saga_id,
        schema_version, headers, payload, data)
    SELECT
        g.sink, g.event_type, g.aggregate_type, g.aggregate_id, g.source_topic || '.dlq', g.source_topic || '.dlq',
        g.content_type, g.correlation_id, g.event_id::text, g.saga_id, g.schema_version,
        CASE
            WHEN json_typeof(g.headers) <> 'object' OR g.headers::text ~ '^\s*\{\s*\}\s*$' THEN died.of
            ELSE (regexp_replace(g.headers::text, '\}\s*$', '') || ',' || substr(died.of::text, 2))::json
        END,
        g.payload, CASE WHEN g.payload IS NULL THEN g.data END
    FROM gone g
    CROSS JOIN LATERAL (
        SELECT json_strip_nulls(json_build_object(
            'dlq-event-id', g.event_id,
            'dlq-source-topic', g.source_topic,
            'dlq-key', oncommit.ordering_key(g.key, g.aggregate_type, g.aggregate_id),
            'dlq-reason', g.reason,
            'dlq-error-type', g.error_type,
            'dlq-error', left(g.error, 500),
            'dlq-attempts', (greatest(least(g.attempts, 2147483646) + CASE WHEN g.reason = 'crashed' THEN 0 ELSE 1 END, 0))::text,
            'dlq-crashes', g.crashes::text,
            'dlq-written-at', to_char(g.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'dlq-died-at', to_char(oncommit.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) AS of
    ) died
    WHERE g.source_topic IS NOT NULL
    ORDER BY g.lane, g.id
)
INSERT INTO oncommit.dead_letter (
    source, origin, message_id, event_id, outbox_id, lane, saga_id, attempts, crashes, max_attempts,
    reason, error_type, error_message, created_at, expires_at,
    priority, schema_version, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, headers, payload, data)
SELECT
    'outbox', g.sink, g.event_id::text, g.event_id, g.id, g.lane, g.saga_id,
    greatest(least(g.attempts, 2147483646) + CASE WHEN g.reason = 'crashed' THEN 0 ELSE 1 END, 0), greatest(g.crashes, 0),
    g.max_attempts,
    g.reason, g.error_type, g.error, g.created_at, oncommit.now() + make_interval(days => kept.days),
    g.priority, g.schema_version, g.event_type, g.aggregate_type, g.aggregate_id, g.key, g.topic, g.content_type,
    g.correlation_id, g.causation_id, g.headers, g.payload,
    CASE WHEN g.payload IS NULL THEN g.data END
FROM gone g
CROSS JOIN (
    -- As long as everybody on this database has agreed on; $12 where nobody has yet.
    SELECT coalesce(
        (SELECT (s.value ->> 'dead_letter_days')::integer FROM oncommit.setting s WHERE s.name = 'retention'),
        $12::integer) AS days
) kept
ON CONFLICT ON CONSTRAINT dead_letter_message DO UPDATE
SET state = 'dead', reason = excluded.reason, error_type = excluded.error_type, error_message = excluded.error_message,
    attempts = excluded.attempts, crashes = excluded.crashes, died_at = oncommit.now(),
    expires_at = excluded.expires_at, outbox_id = excluded.outbox_id,
    history = dead_letter.history || jsonb_build_object(
        'round', dead_letter.round, 'died_at', dead_letter.died_at, 'reason', dead_letter.reason,
        'attempts', dead_letter.attempts, 'error', dead_letter.error_message)
RETURNING lane, outbox_id AS id
