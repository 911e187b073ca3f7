-- The seat of the leader, once. Two at once: the second finds the first one's row.
INSERT INTO oncommit.setting AS s (name, value)
VALUES ('maintenance', '{"owner": null, "until": "-infinity"}')
ON CONFLICT (name) DO NOTHING
