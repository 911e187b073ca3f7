-- Today's partition of the archive was found missing when a batch was settled. Two relays at once: see the function.
SELECT oncommit.make_archive_partition((oncommit.now() AT TIME ZONE 'UTC')::date) AS made
