-- Keep things for another number of days. It was locked and read before, in this transaction.
UPDATE oncommit.setting s
SET value = $1::text::jsonb, changed_at = oncommit.now(), changed_by = current_user
WHERE s.name = 'retention'
RETURNING s.name
