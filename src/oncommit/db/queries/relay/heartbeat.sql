-- Renew the lease. No row: somebody removed us, and our lanes are no longer ours.
UPDATE oncommit.outbox_relay SET heartbeat = oncommit.now() WHERE relay_id = $1::uuid RETURNING relay_id
