-- What this transaction may wait for, and how long it may last: for a lock, in a statement, and idle between two of
-- them, where its program is asleep or gone. Of the transaction, so that they hold behind a pooler too.
SELECT set_config('lock_timeout', $1::text, true), set_config('statement_timeout', $2::text, true),
       set_config('idle_in_transaction_session_timeout', $3::text, true)
