-- One event that no database has seen before, in the caller's transaction. Nothing is asked back: a row that is returned
-- is kept aside first and costs both sides, and that this one is new is known.
--
-- Safe under concurrency: the row is seen by nobody before that transaction commits, and goes with it if it does not.
-- Somebody else writing the same id at this moment makes us wait for the end of his transaction (on the unique index):
-- committed, we write nothing; rolled back, we write. The caller's transaction is never aborted by a duplicate, save
-- above read committed, where one that our snapshot cannot see is a serialization failure.
--
-- payload and headers come as text and are cast here: a codec that the application set for json on its connection
-- would otherwise encode them a second time.
--
-- The lane is given, not left to the table's trigger: this event was checked before it came here (docs/adr/0007).
INSERT INTO oncommit.outbox (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data, lane)
SELECT v.*, oncommit.lane_of(v.priority, v.key, v.aggregate_type, v.aggregate_id, v.event_id)
FROM (VALUES (
    $1::uuid, $2::text, $3::smallint, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
    $10::text, $11::text, $12::uuid, $13::integer, $14::integer, $15::text::json, $16::text::json, $17::bytea
)) AS v (
    event_id, sink, priority, event_type, aggregate_type, aggregate_id, key, topic, content_type,
    correlation_id, causation_id, saga_id, schema_version, max_attempts, headers, payload, data)
ON CONFLICT (event_id) DO NOTHING
