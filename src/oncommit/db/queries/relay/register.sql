-- A relay presents itself. Under a new id each time it starts or has lost its row, so that no two can be the same one,
-- whatever they are called. The same id again: the answer to the first time was lost.
INSERT INTO oncommit.outbox_relay AS r (relay_id, name, sinks, version)
VALUES ($1::uuid, $2::text, $3::text[], $4::text)
ON CONFLICT (relay_id) DO UPDATE SET heartbeat = oncommit.now(), sinks = excluded.sinks
RETURNING r.relay_id
