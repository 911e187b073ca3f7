-- The same, to be changed in this transaction: who changes it at the same time waits, and then sees what we have written.
SELECT s.value::text AS retention FROM oncommit.setting s WHERE s.name = 'retention' FOR UPDATE
