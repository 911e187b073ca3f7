-- What the topic of one live event follows from, to find where the copy of a dead one goes. Read without a lock: none of
-- it changes while the event lives, except its topic, which an operator may have set a moment later.
SELECT o.event_type, o.topic, o.aggregate_type, o.aggregate_id
FROM oncommit.outbox o
WHERE o.sink = $1::text AND o.lane = $2::smallint AND o.id = $3::bigint
