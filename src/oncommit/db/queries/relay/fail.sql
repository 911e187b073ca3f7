-- Events that were not acknowledged: one attempt more and a time to come back, on lanes that are still ours (as in
-- settle.sql). The delay counts from PostgreSQL's clock. Whose attempts are spent goes to bury.sql instead.
--
-- An attempt is counted once, however often it is written: the count before it has to be the one that was read. A
-- reservation that has lapsed becomes pending, with its attempt counted; its back-off is the owner's memory alone.
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
    SELECT f.lane, f.id, f.attempts, f.delay, f.error
    FROM unnest($5::smallint[], $6::bigint[], $7::integer[], $8::float8[], $9::text[])
         AS f (lane, id, attempts, delay, error)
)
UPDATE oncommit.outbox o
SET state = CASE o.state WHEN 'optimistic' THEN 'pending' ELSE 'failed' END,
    attempts = o.attempts + 1, last_error = failed.error,
    available_at = CASE o.state WHEN 'optimistic' THEN NULL
                   ELSE oncommit.now() + make_interval(secs => failed.delay) END
FROM failed, fence
WHERE o.sink = $10::text AND o.lane = failed.lane AND o.id = failed.id AND fence.lane = failed.lane
  AND o.attempts = failed.attempts AND o.state IN ('pending', 'failed', 'optimistic')
RETURNING o.lane, o.id
