-- Wake the relays that listen; the payload names sinks, nothing all of them. Heard when the transaction has committed.
-- Commits that notify stand in line, one after the other, for the whole server: so it is not part of the application's
-- transactions unless that is asked for. No row is touched, and a notification that is lost costs a poll's time.
SELECT pg_notify($1::text, $2::text)
