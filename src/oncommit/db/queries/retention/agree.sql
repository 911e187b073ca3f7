-- Put the defaults on record, once, so that programs of another version go by the same. Two at once: the first counts.
INSERT INTO oncommit.setting AS s (name, value)
VALUES ('retention', $1::text::jsonb)
ON CONFLICT (name) DO NOTHING
