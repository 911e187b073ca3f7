-- One event was alone in flight when its relay died: it is charged with a crash (C-alone), on a lane that is ours. Once a
-- claim: it stops being an alone one in the same statement, so that whoever finds it after us charges nobody.
WITH charged AS (
    UPDATE oncommit.outbox_claim k
    SET alone = false
    FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c (lane, epoch, id), oncommit.outbox_lane l
    WHERE k.sink = $4::text AND k.lane = c.lane AND k.relay_id <> $5::uuid AND k.alone AND k.rows = 1
      AND k.first_id = c.id
      AND l.sink = k.sink AND l.lane = c.lane AND l.owner = $6::uuid AND l.epoch = c.epoch
    RETURNING k.lane, k.first_id AS id
), once AS (
    SELECT DISTINCT lane, id FROM charged
)
UPDATE oncommit.outbox o
SET crashes = least(o.crashes, 2147483646) + 1
FROM once
WHERE o.sink = $7::text AND o.lane = once.lane AND o.id = once.id
RETURNING o.lane, o.id, o.crashes
