-- A leader who stops leaves his seat to others at once.
UPDATE oncommit.setting s
SET value = '{"owner": null, "until": "-infinity"}', changed_at = oncommit.now()
WHERE s.name = 'maintenance' AND s.value ->> 'owner' = $1::text
RETURNING s.name
