-- Renew the lease, and say which sinks are served: one whose broker cannot be reached is left to others meanwhile. No row:
-- somebody removed us, and our lanes are no longer ours.
UPDATE oncommit.outbox_relay SET heartbeat = oncommit.now(), sinks = $1::text[] WHERE relay_id = $2::uuid RETURNING relay_id
