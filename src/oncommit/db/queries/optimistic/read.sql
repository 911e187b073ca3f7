-- What was reserved in a transaction that has committed by now, read again before it is sent: a savepoint that was rolled
-- back has taken its rows along, and one that has lapsed (its `wait` is over) is the relay's.
--
-- Safe under concurrency: nothing is locked, since nobody else acts on a row that is reserved; whoever comes too late is
-- stopped by the same condition in settle.sql. Columns as in relay/fetch.sql, without an epoch. A standby gives nothing:
-- what is sent must be settled where it was read.
SELECT w.sink, w.lane, 0::bigint AS epoch, w.id, w.event_id, w.event_type, w.aggregate_type, w.aggregate_id, w.topic,
       w.content_type, w.correlation_id, w.causation_id, w.saga_id, w.schema_version, w.priority, w.attempts, w.crashes,
       w.max_attempts, w.created_at, w.key, w.wait, w.headers, w.body, w.is_json, w.bytes,
       0::bigint AS found
FROM oncommit.outbox r
JOIN oncommit.outbox_wire w ON w.sink = r.sink AND w.lane = r.lane AND w.id = r.id
WHERE r.event_id = ANY ($1::uuid[])
  AND r.state = 'optimistic'
  AND NOT pg_is_in_recovery()
ORDER BY w.sink, w.id
