-- The leader renews his lease; no row: somebody else has the seat. One that ran out and was not taken is his still.
-- It changes no key, so it does not wait for an act of his own that is under way on another connection (fence.sql).
UPDATE oncommit.setting s
SET value = jsonb_build_object('owner', $1::text, 'until', oncommit.now() + make_interval(secs => $2::float8)),
    changed_at = oncommit.now()
WHERE s.name = 'maintenance' AND s.value ->> 'owner' = $1
RETURNING s.name
