-- Events that were not acknowledged: one attempt more and a time to come back, on lanes that are still ours (as in
-- settle.sql). The delay counts from PostgreSQL's clock. Whose attempts are spent goes to bury.sql instead.
WITH batch AS MATERIALIZED (
    SELECT w.lane, w.epoch FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, epoch)
), fence AS MATERIALIZED (
    SELECT l.lane
    FROM oncommit.outbox_lane l
    JOIN batch ON batch.lane = l.lane AND batch.epoch = l.epoch
    WHERE l.sink = $3::text AND l.owner = $4::uuid
    ORDER BY l.lane
    FOR KEY SHARE OF l
), failed AS MATERIALIZED (
    SELECT f.lane, f.id, f.delay, f.error
    FROM unnest($5::smallint[], $6::bigint[], $7::float8[], $8::text[]) AS f (lane, id, delay, error)
)
UPDATE oncommit.outbox o
SET state = 'failed', attempts = o.attempts + 1, last_error = failed.error,
    available_at = oncommit.now() + make_interval(secs => failed.delay)
FROM failed, fence
WHERE o.sink = $9::text AND o.lane = failed.lane AND o.id = failed.id AND fence.lane = failed.lane
  AND o.state IN ('pending', 'failed')
RETURNING o.lane, o.id
