-- Note up to where our lanes are empty for good, so that senders behind a commit need not look from zero (O-settled).
--
-- Nothing can appear any more at `sure` or below, and that was known before this statement's snapshot was taken: what it
-- does not see there, nobody ever will. Written only where it is worth a row: a thousand ids further, or back to nothing
-- where the sequence has fallen below it. Each id is passed by once: the look begins where the last one ended. It
-- goes a hundred thousand ids at most: while an old transaction keeps vacuum away, each of them costs a look at a dead row.
--
-- Safe beside acts below the floor: they bump rescan and lower settled_to in one transaction (A-rescan). One that comes
-- first makes us wait, read the lane again and leave it alone, since its rescan is not the one we saw.
WITH mine AS MATERIALIZED (
    SELECT l.lane, l.epoch, l.rescan, l.settled_to,
           CASE WHEN l.settled_to > $1::bigint THEN 0 ELSE l.settled_to END AS base
    FROM unnest($2::smallint[], $3::bigint[]) AS w (lane, epoch)
    JOIN oncommit.outbox_lane l ON l.sink = $4::text AND l.lane = w.lane AND l.owner = $5::uuid AND l.epoch = w.epoch
), reached AS MATERIALIZED (
    SELECT mine.*, least($6::bigint, coalesce(first.id - 1, mine.base + 100000)) AS up_to
    FROM mine
    LEFT JOIN LATERAL (
        SELECT o.id FROM oncommit.outbox o
        WHERE o.sink = $7::text AND o.lane = mine.lane AND o.id > mine.base AND o.id <= mine.base + 100000
        ORDER BY o.id
        LIMIT 1
    ) first ON true
)
UPDATE oncommit.outbox_lane l
SET settled_to = greatest(r.base, r.up_to)
FROM reached r
WHERE l.sink = $8::text AND l.lane = r.lane AND l.owner = $9::uuid AND l.epoch = r.epoch
  AND l.rescan = r.rescan AND l.settled_to = r.settled_to
  AND (r.up_to >= r.base + 1000 OR r.base < r.settled_to)
RETURNING l.lane
