-- First in each migration's transaction, where the settings end with it. The short lock_timeout keeps a migrator from
-- queueing behind a long transaction, with the application's writers queueing behind the migrator. What it does once it
-- has its locks may take as long as it needs, whatever the role's default says.
SELECT
    pg_catalog.set_config('lock_timeout', $1, true),
    pg_catalog.set_config('statement_timeout', '0', true);
