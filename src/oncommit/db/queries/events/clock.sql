-- The database's time, which is the one that rows were stamped with.
SELECT oncommit.now();
