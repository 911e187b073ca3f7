-- The relays, and how long ago each was last heard of. Reads only, one snapshot.
SELECT
    r.relay_id, r.name, r.sinks, r.version, r.started_at,
    extract(epoch FROM oncommit.now() - r.heartbeat)::float8 AS heartbeat_age_seconds
FROM oncommit.outbox_relay r
ORDER BY r.started_at, r.relay_id
