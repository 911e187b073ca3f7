-- Dead letters that wait for somebody, by source and origin (of the outbox: the sink). Reads only, one snapshot.
SELECT
    d.source, d.origin, count(*) AS dead_letters,
    extract(epoch FROM oncommit.now() - min(d.died_at))::float8 AS oldest_age
FROM oncommit.dead_letter d
WHERE d.state IN ('dead', 'replaying')
GROUP BY d.source, d.origin
ORDER BY d.source, d.origin
