-- Rows where none should be: at or below what was noted as settled, placed there by hand or by what no rule foresaw. The
-- first of each lane is enough, since the lane is read from there. No right is asked for: who is wrong reads in vain.
SELECT w.lane, s.id
FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, settled_to)
CROSS JOIN LATERAL (
    SELECT o.id FROM oncommit.outbox o
    WHERE o.sink = $3::text AND o.lane = w.lane AND o.id <= w.settled_to
    ORDER BY o.id
    LIMIT 1
) s
