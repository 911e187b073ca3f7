-- One event that no database has seen before and that leaves to the defaults what most leave to them; otherwise as
-- add_one.sql. Seven parameters less are worth a seventh of the statement to both sides.
INSERT INTO oncommit.outbox (
    event_id, event_type, aggregate_type, aggregate_id, key, topic, correlation_id, causation_id, headers, payload, lane)
SELECT v.*, oncommit.lane_of(5::smallint, v.key, v.aggregate_type, v.aggregate_id, v.event_id)
FROM (VALUES (
    $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text::json, $10::text::json
)) AS v (
    event_id, event_type, aggregate_type, aggregate_id, key, topic, correlation_id, causation_id, headers, payload)
ON CONFLICT (event_id) DO NOTHING
