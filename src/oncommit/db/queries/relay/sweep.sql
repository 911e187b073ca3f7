-- Step 4 of watching for late commits: which rows lie in these stretches of these lanes now, with their keys. What is new
-- among them is read and claimed by fetch_ids.sql. The lanes' rescan comes along, for acts below the floor (A-rescan).
SELECT w.lane, w.epoch, l.rescan, o.id, o.key
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w (lane, epoch, low, high)
JOIN oncommit.outbox_lane l ON l.sink = $5::text AND l.lane = w.lane AND l.owner = $6::uuid AND l.epoch = w.epoch
LEFT JOIN LATERAL (
    SELECT p.id, oncommit.ordering_key(p.key, p.aggregate_type, p.aggregate_id) AS key
    FROM oncommit.outbox p
    WHERE p.sink = $7::text AND p.lane = w.lane AND p.id > w.low AND p.id <= w.high
    ORDER BY p.id
    LIMIT $8::integer
) o ON true
ORDER BY w.lane, o.id
