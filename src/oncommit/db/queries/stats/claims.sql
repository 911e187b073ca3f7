-- Batches in flight. "left" is what a relay left behind that has lost the lane since: its successor tries it first, apart.
-- Reads only, one snapshot.
SELECT
    c.sink, c.relay_id, c.batch, count(*) AS lanes, sum(c.rows)::bigint AS rows,
    coalesce(sum(c.rows) FILTER (WHERE l.owner IS DISTINCT FROM c.relay_id OR l.epoch <> c.epoch), 0)::bigint AS left_rows,
    extract(epoch FROM oncommit.now() - min(c.claimed_at))::float8 AS age_seconds
FROM oncommit.outbox_claim c
LEFT JOIN oncommit.outbox_lane l ON l.sink = c.sink AND l.lane = c.lane
GROUP BY c.sink, c.relay_id, c.batch
ORDER BY c.sink, age_seconds DESC, c.relay_id, c.batch
