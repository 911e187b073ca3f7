-- Finish a detach that was cut off. It waits for those who could still see the day as part of the archive, with a limit
-- for locks; new statements don't, so nobody waits for it. The name is a stand-in.
ALTER TABLE oncommit.outbox_archive DETACH PARTITION oncommit.outbox_archive_00000000 FINALIZE
