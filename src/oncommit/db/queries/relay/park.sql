-- Events that nobody will try again by itself, under "park_key": each stays where it is, as a dead letter that is never
-- due, beside its record. So its key waits, for whoever reads the lane, until an operator has decided. Both in one
-- statement, on lanes that are still ours (as in settle.sql): there is no dead letter without its record, nor a record
-- of an event that is still tried.
--
-- Where a topic is given with it, a copy goes to <topic>.dlq (see bury.sql).
--
-- Run again after a lost answer it finds nothing to do, since the event is a dead letter by then. Events without a key
-- hold nobody back; they go to bury.sql.
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
), parked AS (
    UPDATE oncommit.outbox o
    SET state = 'dead_letter', available_at = 'infinity', last_error = dead.error,
        attempts = o.attempts + CASE WHEN dead.reason = 'crashed' THEN 0 ELSE 1 END
    FROM dead, fence
    WHERE o.sink = $11::text AND o.lane = dead.lane AND o.id = dead.id AND fence.lane = dead.lane
      AND o.state IN ('pending', 'failed')
      AND oncommit.ordering_key(o.key, o.aggregate_type, o.aggregate_id) IS NOT NULL
    RETURNING o.*, dead.reason, dead.error_type, dead.error, dead.source_topic
), copies AS (
    INSERT INTO oncommit.outbox (
        sink, event_type, aggregate_type, aggregate_id, key, topic, content_type, correlation_id, causation_id, saga_id,
        schema_version, headers, payload, data)
    SELECT
        p.sink, p.event_type, p.aggregate_type, p.aggregate_id, p.source_topic || '.dlq', p.source_topic || '.dlq',
        p.content_type, p.correlation_id, p.event_id::text, p.saga_id, p.schema_version,
        CASE
            WHEN json_typeof(p.headers) <> 'object' OR p.headers::text ~ '^\s*\{\s*\}\s*$' THEN died.of
            ELSE (regexp_replace(p.headers::text, '\}\s*$', '') || ',' || substr(died.of::text, 2))::json
        END,
        p.payload, p.data
    FROM parked p
    CROSS JOIN LATERAL (
        SELECT json_strip_nulls(json_build_object(
            'dlq-event-id', p.event_id,
            'dlq-source-topic', p.source_topic,
            'dlq-key', oncommit.ordering_key(p.key, p.aggregate_type, p.aggregate_id),
            'dlq-reason', p.reason,
            'dlq-error-type', p.error_type,
            'dlq-error', left(p.error, 500),
            'dlq-attempts', (p.attempts)::text,
            'dlq-crashes', p.crashes::text,
            'dlq-written-at', to_char(p.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'dlq-died-at', to_char(oncommit.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) AS of
    ) died
    WHERE p.source_topic IS NOT NULL
    ORDER BY p.lane, p.id
)
INSERT INTO oncommit.dead_letter (
    source, origin, message_id, event_id, outbox_id, lane, saga_id, attempts, crashes, max_attempts,
    reason, error_type, error_message, created_at, expires_at,
    priority, schema_version, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, headers, payload, data)
SELECT
    'outbox', p.sink, p.event_id::text, p.event_id, p.id, p.lane, p.saga_id, p.attempts, p.crashes, p.max_attempts,
    p.reason, p.error_type, p.error, p.created_at, oncommit.now() + make_interval(days => kept.days),
    p.priority, p.schema_version, p.event_type, p.aggregate_type, p.aggregate_id, p.key, p.topic, p.content_type,
    p.correlation_id, p.causation_id, p.headers, p.payload, p.data
FROM parked p
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
