-- What was in flight on these lanes when their owners died: claims of others than the owner.
SELECT c.lane, c.first_id, c.last_id, c.rows, c.alone
FROM oncommit.outbox_claim c
WHERE c.sink = $1::text AND c.lane = ANY ($2::smallint[]) AND c.relay_id <> $3::uuid
ORDER BY c.lane, c.first_id
