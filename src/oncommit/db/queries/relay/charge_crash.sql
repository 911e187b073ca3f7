-- One event was alone in flight when its relay died: it is charged with a crash (C-alone), on a lane that is ours.
UPDATE oncommit.outbox o
SET crashes = o.crashes + 1
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c (lane, epoch, id), oncommit.outbox_lane l
WHERE o.sink = $4::text AND o.lane = c.lane AND o.id = c.id
  AND l.sink = o.sink AND l.lane = o.lane AND l.owner = $5::uuid AND l.epoch = c.epoch
RETURNING o.lane, o.id, o.crashes
