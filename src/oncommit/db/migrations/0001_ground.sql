-- The ground everything stands on: the schema, the record of what was applied, settings, the clock.

-- Not IF NOT EXISTS: that asks for the right to make schemas even where an administrator has made this one for us.
DO $$
BEGIN
    IF pg_catalog.to_regnamespace('oncommit') IS NULL THEN
        CREATE SCHEMA oncommit;
    END IF;
END
$$;

CREATE TABLE oncommit.migration (
    version    integer     PRIMARY KEY CHECK (version > 0),
    name       text        NOT NULL,
    -- Of the file's text for the schema `oncommit`, so that an edited migration is noticed whatever the schema is called.
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.statement_timestamp()
);

COMMENT ON TABLE oncommit.migration IS 'Which numbered SQL files of the package were applied here, and when.';

CREATE TABLE oncommit.setting (
    name       text        PRIMARY KEY,
    value      jsonb       NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT pg_catalog.statement_timestamp(),
    changed_by text        NOT NULL DEFAULT current_user
);

COMMENT ON TABLE oncommit.setting IS 'What every program on this schema must agree on.';

-- The only clock. Statement time: one value in a statement (so an index can be used), a new one in the next,
-- also inside a long transaction. Inlined by the planner; the test kit replaces it to turn time by hand.
CREATE FUNCTION oncommit.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT pg_catalog.statement_timestamp()';

-- A time-ordered id (UUID version 7) for rows that plain SQL writes; 18 has one built in, 15 has not.
-- 48 bits of milliseconds over a random version 4 id, then the version bits turned from 0100 to 0111.
CREATE FUNCTION oncommit.make_id() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$
    SELECT pg_catalog.encode(
        pg_catalog.set_bit(
            pg_catalog.set_bit(
                pg_catalog.overlay(
                    pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
                    pg_catalog.substring(
                        pg_catalog.int8send((extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint), 3),
                    1, 6),
                52, 1),
            53, 1),
        'hex')::uuid
    $$;
