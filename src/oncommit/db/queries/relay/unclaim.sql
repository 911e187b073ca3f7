-- End a batch of which nothing was published after all; without a number, all batches of this relay and sink.
DELETE FROM oncommit.outbox_claim c
WHERE c.relay_id = $1::uuid AND c.sink = $2::text AND c.batch = coalesce($3::bigint, c.batch)
RETURNING c.lane
