-- What lies in the live table, by sink. Reads only, one snapshot, one pass over a table that is as small as the backlog.
-- A reservation or a back-off that has run out makes the event pending again; nobody has to write that down.
SELECT
    o.sink,
    count(*) FILTER (WHERE o.state <> 'dead_letter') AS pending,
    count(*) FILTER (WHERE o.state = 'failed' AND o.available_at > n.now) AS failed,
    count(*) FILTER (WHERE o.state = 'optimistic' AND o.available_at > n.now) AS optimistic,
    count(*) FILTER (WHERE o.state = 'dead_letter') AS parked,
    extract(epoch FROM n.now - min(o.created_at) FILTER (WHERE o.state <> 'dead_letter'))::float8 AS oldest_age
FROM oncommit.outbox o
CROSS JOIN (SELECT oncommit.now() AS now) n
GROUP BY o.sink, n.now
ORDER BY o.sink
