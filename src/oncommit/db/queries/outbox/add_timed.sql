-- Many events of which some may not go before their time: those wait in outbox_delayed, the others are live at once.
-- PostgreSQL's clock decides which is which, so that a writer whose clock is wrong delays nothing and hurries nothing.
-- Otherwise as add_many.sql. The result says which table each new row went to.
--
-- Two open transactions that add one event just before and just after its time write it once into each table, and
-- neither sees the other's row. So whoever moves a delayed event when it is due looks for its id in outbox, archive and
-- dead letters first, as take_back.sql does. A lock here would make every writer of a delayed event pay for that.
WITH v AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::uuid[], $13::integer[], $14::integer[], $15::text[], $16::text[], $17::bytea[],
        $18::timestamptz[]
    ) WITH ORDINALITY AS u (
        event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
        correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, not_before, ord)
), later AS (
    INSERT INTO oncommit.outbox_delayed (
        event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
        correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, not_before)
    SELECT
        v.event_id, v.sink, v.priority, v.event_type, v.aggregate_type, v.aggregate_id, v.key, v.topic, v.content_type,
        v.correlation_id, v.causation_id, v.saga_id, v.schema_version, v.max_attempts,
        v.headers::json, v.payload::json, v.data, v.not_before
    FROM v
    WHERE v.not_before > oncommit.now()
    ORDER BY v.ord
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id
), live AS (
    INSERT INTO oncommit.outbox (
        event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
        correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data)
    SELECT
        v.event_id, v.sink, v.priority, v.event_type, v.aggregate_type, v.aggregate_id, v.key, v.topic, v.content_type,
        v.correlation_id, v.causation_id, v.saga_id, v.schema_version, v.max_attempts,
        v.headers::json, v.payload::json, v.data
    FROM v
    WHERE v.not_before IS NULL OR v.not_before <= oncommit.now()
    ORDER BY v.ord
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id
)
SELECT event_id, false AS delayed FROM live
UNION ALL
SELECT event_id, true FROM later
