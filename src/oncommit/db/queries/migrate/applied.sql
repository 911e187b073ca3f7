-- What was applied here, oldest first. A plain read; inside a migrator's lock it is the last word.
SELECT m.version, m.name, m.checksum, m.applied_at
FROM oncommit.migration AS m
ORDER BY m.version;
