-- What a relay reads of a live event: the key that orders it, how long it has to wait, the bytes that go over the wire, and
-- how much memory it will take. One place, since rows are read by place (fetch.sql) and by id (fetch_ids.sql). Simple
-- enough for the planner to see through: the scan order of outbox is used as if the view were not there.

CREATE VIEW oncommit.outbox_wire AS
SELECT
    o.sink, o.lane, o.id, o.event_id, o.event_type, o.aggregate_type, o.aggregate_id, o.topic, o.content_type,
    o.correlation_id, o.causation_id, o.saga_id, o.schema_version, o.priority, o.attempts, o.crashes,
    o.max_attempts,
    -- Within what clients can tell: plain SQL may have written infinity, or a year that no datetime holds.
    greatest(least(o.created_at, '9999-12-30 00:00:00+00'), '0001-01-02 00:00:00+00') AS created_at,
    oncommit.ordering_key(o.key, o.aggregate_type, o.aggregate_id) AS key,
    CASE WHEN o.available_at IS NULL THEN 0::float8
         -- Each for itself: before PostgreSQL 17, infinity less a time was an error.
         ELSE extract(epoch FROM o.available_at)::float8 - extract(epoch FROM oncommit.now())::float8
    END AS wait,
    o.headers::text AS headers,
    coalesce(pg_catalog.convert_to(o.payload::text, 'UTF8'), o.data) AS body,
    o.payload IS NOT NULL AS is_json,
    -- On the text, since compressed rows can be a hundred times larger in memory; and something for the row itself.
    200 + coalesce(pg_catalog.octet_length(o.payload::text), pg_catalog.octet_length(o.data), 0)
        + pg_catalog.octet_length(o.headers::text) AS bytes
FROM oncommit.outbox o;

COMMENT ON VIEW oncommit.outbox_wire IS 'Live events as a relay reads them.';
