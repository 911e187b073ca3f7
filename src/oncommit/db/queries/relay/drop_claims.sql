-- The suspects of a dead owner have been dealt with on these lanes. Only while the lanes are ours.
DELETE FROM oncommit.outbox_claim c
USING unnest($1::smallint[], $2::bigint[]) AS mine (lane, epoch), oncommit.outbox_lane l
WHERE c.sink = $3::text AND c.lane = mine.lane AND c.relay_id <> $4::uuid
  AND l.sink = c.sink AND l.lane = c.lane AND l.owner = $5::uuid AND l.epoch = mine.epoch
RETURNING c.lane
