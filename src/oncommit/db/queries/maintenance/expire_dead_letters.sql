-- Dead letters whose time is over go, oldest first, so many at a time: those that nobody dealt with, and the history of
-- those that somebody did. Not one that is being replayed. What an operator has locked is passed over.
--
-- Both have to be over: the time that was set when it died, and the days for which they are kept now ($1). So more days
-- also save what is there, and the index on died_at rules out the rest.
--
-- A head that was parked in outbox beside its record goes with it, and its lane is read again: its key is free.
WITH over AS MATERIALIZED (
    SELECT d.id
    FROM oncommit.dead_letter d
    WHERE d.died_at <= oncommit.now() - make_interval(days => $1::integer)
      AND d.expires_at <= oncommit.now() AND d.state <> 'replaying'
    ORDER BY d.died_at, d.id
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM oncommit.dead_letter d USING over WHERE d.id = over.id
    RETURNING d.source, d.origin, d.event_id, d.state
), heads AS (
    DELETE FROM oncommit.outbox o
    USING gone
    WHERE gone.source = 'outbox' AND gone.state = 'dead'
      AND o.event_id = gone.event_id AND o.sink = gone.origin AND o.state = 'dead_letter'
    RETURNING o.sink, o.lane
), freed AS (
    UPDATE oncommit.outbox_lane l
    SET rescan = l.rescan + 1
    WHERE (l.sink, l.lane) IN (SELECT heads.sink, heads.lane FROM heads)
)
SELECT gone.source, gone.origin, count(*) AS expired, count(*) FILTER (WHERE gone.state = 'dead') AS unanswered
FROM gone
GROUP BY gone.source, gone.origin
ORDER BY gone.source, gone.origin
