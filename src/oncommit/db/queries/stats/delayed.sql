-- What waits for its time, by sink, and how much of it is due and was not moved yet. Reads only, one snapshot.
SELECT
    d.sink,
    count(*) AS delayed,
    count(*) FILTER (WHERE d.not_before <= n.now) AS due
FROM oncommit.outbox_delayed d
CROSS JOIN (SELECT oncommit.now() AS now) n
GROUP BY d.sink
ORDER BY d.sink
