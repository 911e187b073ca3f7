-- Whose the lanes are, by sink; without an owner, or with one whose row is gone, they are nobody's. Reads only, one snapshot.
SELECT l.sink, r.relay_id, count(*) AS lanes
FROM oncommit.outbox_lane l
LEFT JOIN oncommit.outbox_relay r ON r.relay_id = l.owner
GROUP BY l.sink, r.relay_id
ORDER BY l.sink, r.relay_id
