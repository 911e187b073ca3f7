-- Events that their sender could not send become the relay's at once, without an attempt spent. Only while the reservation
-- holds, as in settle.sql; one that has lapsed is the relay's already. A relay that has seen the reservation looks again by
-- itself (R-reserved), so the lane's rescan is left alone: all failing senders would queue for that one row.
UPDATE oncommit.outbox o
SET state = 'pending', available_at = NULL
FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS b (sink, lane, id)
WHERE o.sink = b.sink AND o.lane = b.lane AND o.id = b.id
  AND o.state = 'optimistic' AND o.available_at > oncommit.now()
RETURNING o.event_id
