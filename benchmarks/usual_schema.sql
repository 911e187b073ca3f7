-- The outbox table that most projects have, which ours is shown beside. It ships with the package, since
-- `oncommit bench write` measures it; in psql this file makes it too.
\ir ../src/oncommit/testing/bench/usual_schema.sql
