-- Reservations of these events end, on lanes that are still ours (as in settle.sql): from optimistic no move leads to the
-- dead letters (park.sql). The relay has read them, so they have lapsed, and their sender leaves them alone. Nothing else
-- changes: a relay that dies after this has them tried again.
WITH batch AS MATERIALIZED (
    SELECT w.lane, w.epoch FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
), fence AS MATERIALIZED (
    SELECT l.lane
    FROM oncommit.outbox_lane l
    JOIN batch ON batch.lane = l.lane AND batch.epoch = l.epoch
    WHERE l.sink = $3::text AND l.owner = $4::uuid
    ORDER BY l.lane
    FOR KEY SHARE OF l
)
UPDATE oncommit.outbox o
SET state = 'pending', available_at = NULL
FROM unnest($5::smallint[], $6::bigint[]) AS dead (lane, id), fence
WHERE o.sink = $7::text AND o.lane = dead.lane AND o.id = dead.id AND fence.lane = dead.lane
  AND o.state = 'optimistic' AND o.available_at <= oncommit.now()
RETURNING o.lane, o.id
