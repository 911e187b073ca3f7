-- Dead letters that nobody has dealt with and that will expire within so many days ($2), for a warning in time. As
-- expire_dead_letters.sql. Reads only.
SELECT d.source, d.origin, count(*) AS expiring, min(d.died_at) AS oldest,
       min(greatest(d.expires_at, d.died_at + make_interval(days => $1::integer))) AS first
FROM oncommit.dead_letter d
WHERE d.died_at <= oncommit.now() - make_interval(days => $1 - $2::integer)
  AND d.expires_at <= oncommit.now() + make_interval(days => $2) AND d.state = 'dead'
GROUP BY d.source, d.origin
ORDER BY d.source, d.origin
