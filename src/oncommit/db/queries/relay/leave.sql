-- A relay that stops takes its row along. Its lanes were handed back before; should one be left, it has no living owner.
DELETE FROM oncommit.outbox_relay WHERE relay_id = $1::uuid RETURNING relay_id
