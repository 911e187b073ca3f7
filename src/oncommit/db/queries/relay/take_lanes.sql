-- Take lanes that nobody living has.
--
-- FOR UPDATE, not what UPDATE would lock by itself: it conflicts with the FOR KEY SHARE under which an owner settles
-- (T-lock), and SKIP LOCKED passes over such a lane until it is free. Two relays that take at once never wait for each
-- other and never get the same lane. The owner's heartbeat is looked at in the same snapshot; one that renews at this
-- very moment was past its own deadline already, which is the earlier one (L-sending).
--
-- The epoch has to be the one of that snapshot: a lane that somebody took since is read again, in its newest version, but
-- its new owner's heartbeat is not, and a relay that registered a moment ago would look dead.
WITH seen AS MATERIALIZED (
    SELECT s.lane, s.epoch FROM oncommit.outbox_lane s WHERE s.sink = $1::text
), free AS (
    SELECT l.sink, l.lane
    FROM oncommit.outbox_lane l
    JOIN seen ON seen.lane = l.lane AND seen.epoch = l.epoch
    WHERE l.sink = $2::text AND (l.lane >= 64) = $3::boolean
      AND (l.owner IS NULL
           OR NOT EXISTS (
               SELECT FROM oncommit.outbox_relay r
               WHERE r.relay_id = l.owner AND r.heartbeat > oncommit.now() - make_interval(secs => $4::float8)))
    ORDER BY l.lane
    LIMIT $5::integer
    FOR UPDATE OF l SKIP LOCKED
)
UPDATE oncommit.outbox_lane l
SET owner = $6::uuid, epoch = l.epoch + 1
FROM free
WHERE l.sink = free.sink AND l.lane = free.lane
RETURNING l.lane, l.epoch, l.rescan, l.settled_to
