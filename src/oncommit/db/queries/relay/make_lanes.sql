-- The lane rows of a sink, where they are missing: a new sink, or somebody emptied the table. The epoch starts at the
-- clock, so that one from before the emptying can never come back.
INSERT INTO oncommit.outbox_lane (sink, lane, epoch)
SELECT $1::text, lane, (extract(epoch FROM oncommit.now()) * 1000000)::bigint
FROM pg_catalog.generate_series(0, 71) AS lane
ON CONFLICT (sink, lane) DO NOTHING
RETURNING lane
