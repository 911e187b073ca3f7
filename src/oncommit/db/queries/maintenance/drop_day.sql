-- Drop a day that is out of the archive. Under the fence, with a limit for locks; nothing of the archive itself is locked,
-- as dropping a partition that is still attached would do. The name is a stand-in.
DROP TABLE oncommit.outbox_archive_00000000
