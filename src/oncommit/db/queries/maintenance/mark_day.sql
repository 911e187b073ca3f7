-- Say of a day that it is ours to drop, so that no later step takes a table for it that somebody has detached to keep it.
-- Under the fence, with a limit for locks; neither readers nor the settle wait for it. The name is a stand-in.
COMMENT ON TABLE oncommit.outbox_archive_00000000 IS 'expired: the maintenance detaches and drops it'
