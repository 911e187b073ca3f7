-- Take the seat of the leader where its lease has run out, by this database's clock.
--
-- FOR UPDATE, not what UPDATE would lock by itself: it conflicts with the FOR KEY SHARE under which a leader acts
-- (fence.sql), and SKIP LOCKED passes over the seat while an act is under way. So the acts of two leaders never overlap.
-- A leader who is asleep in the middle of one does not keep the seat for ever: his transaction has limits (limits.sql).
-- Those who find the seat taken only read.
WITH seat AS MATERIALIZED (
    SELECT s.name
    FROM oncommit.setting s
    WHERE s.name = 'maintenance' AND (s.value ->> 'until')::timestamptz <= oncommit.now()
    FOR UPDATE SKIP LOCKED
)
UPDATE oncommit.setting s
SET value = jsonb_build_object('owner', $1::text, 'until', oncommit.now() + make_interval(secs => $2::float8)),
    changed_at = oncommit.now()
FROM seat
WHERE s.name = seat.name
RETURNING s.name
