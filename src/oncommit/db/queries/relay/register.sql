-- A relay presents itself. Under a new id each time it starts or has lost its row, so that no two can be the same one,
-- whatever they are called.
INSERT INTO oncommit.outbox_relay (relay_id, name, sinks, version)
VALUES ($1::uuid, $2::text, $3::text[], $4::text)
RETURNING relay_id
