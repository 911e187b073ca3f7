-- What a relay has to know to rebalance: how many live relays serve this sink (itself included), and what its lanes look
-- like now. One snapshot; the right to act comes from the epoch alone, so being out of date costs fairness, not safety.
SELECT
    (SELECT count(*) FROM oncommit.outbox_relay r
     WHERE $1::text = ANY (r.sinks) AND r.heartbeat > oncommit.now() - make_interval(secs => $2::float8)) AS relays,
    (SELECT count(*) FROM oncommit.outbox_lane l WHERE l.sink = $1::text) AS lanes,
    coalesce(array_agg(m.lane ORDER BY m.lane), '{}')::smallint[] AS owned,
    coalesce(array_agg(m.epoch ORDER BY m.lane), '{}')::bigint[] AS epochs,
    coalesce(array_agg(m.rescan ORDER BY m.lane), '{}')::bigint[] AS rescans
FROM oncommit.outbox_lane m
WHERE m.sink = $1::text AND m.owner = $3::uuid
