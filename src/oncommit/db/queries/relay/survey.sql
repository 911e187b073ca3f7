-- What a relay has to know to rebalance: how many other live relays serve this sink (those that cannot reach their broker
-- do not name it), and what its own lanes look like now. One snapshot; the right to act comes from the epoch alone, so being
-- out of date costs fairness, not safety.
SELECT
    (SELECT count(*) FROM oncommit.outbox_relay r
     WHERE $1::text = ANY (r.sinks) AND r.heartbeat > oncommit.now() - make_interval(secs => $2::float8)
       AND r.relay_id <> $3::uuid) AS others,
    (SELECT count(*) FROM oncommit.outbox_lane l WHERE l.sink = $4::text) AS lanes,
    coalesce(array_agg(m.lane ORDER BY m.lane), '{}')::smallint[] AS owned,
    coalesce(array_agg(m.epoch ORDER BY m.lane), '{}')::bigint[] AS epochs,
    coalesce(array_agg(m.rescan ORDER BY m.lane), '{}')::bigint[] AS rescans,
    coalesce(array_agg(m.settled_to ORDER BY m.lane), '{}')::bigint[] AS settled
FROM oncommit.outbox_lane m
WHERE m.sink = $5::text AND m.owner = $6::uuid
