-- How long what is done with is kept here; no row: the defaults. Reads only.
SELECT s.value::text AS retention, s.changed_at, s.changed_by FROM oncommit.setting s WHERE s.name = 'retention'
