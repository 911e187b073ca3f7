-- A partition of the archive, made standing alone and then attached, in one transaction with a limit for locks. What the
-- attach locks, nobody who reads or writes the archive waits for, nor for one that waits itself. Two at once: see the
-- function.
SELECT oncommit.make_archive_partition($1::date) AS made
