-- Take a marked day out of the archive. Outside of a transaction, since it is two of its own: the first says that the day is
-- leaving, then everybody who uses the archive at this moment is waited for, and the second takes it out. It locks nothing
-- meanwhile that a reader or a settle would wait for. Cut off in between, it is finished by finish_day.sql. A second one
-- that does the same finds it leaving, or gone. The name is a stand-in.
ALTER TABLE oncommit.outbox_archive DETACH PARTITION oncommit.outbox_archive_00000000 CONCURRENTLY
