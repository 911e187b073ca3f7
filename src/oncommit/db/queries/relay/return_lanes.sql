-- Hand lanes back, each only if it is still ours under the epoch that we know.
UPDATE oncommit.outbox_lane l
SET owner = NULL
FROM unnest($1::smallint[], $2::bigint[]) AS mine (lane, epoch)
WHERE l.sink = $3::text AND l.lane = mine.lane AND l.epoch = mine.epoch AND l.owner = $4::uuid
RETURNING l.lane
