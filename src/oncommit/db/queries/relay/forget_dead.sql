-- Rows of relays that died long ago. Safe beside one that only slept: it finds its row missing and registers anew.
DELETE FROM oncommit.outbox_relay r
WHERE r.heartbeat < oncommit.now() - make_interval(secs => $1::float8)
  AND NOT EXISTS (SELECT FROM oncommit.outbox_lane l WHERE l.owner = r.relay_id)
RETURNING r.relay_id
