-- Live events: what a transaction committed and no broker has acknowledged yet. Rows leave when they are sent or dead,
-- so the table stays as small as the backlog, whatever the history.

-- What orders events: the explicit key, else the aggregate, else nothing (null: the event stands alone).
CREATE FUNCTION oncommit.ordering_key(key text, aggregate_type text, aggregate_id text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT coalesce(key, aggregate_type || ':' || aggregate_id) $$;

-- A key always falls into the same lane, so one relay at a time sees all of it. Urgent events have eight lanes of their
-- own above the 64 and never wait behind a backlog. Events without a key spread by their id. Inlined by the planner.
CREATE FUNCTION oncommit.lane_of(priority smallint, key text, aggregate_type text, aggregate_id text, event_id uuid)
    RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (CASE
        WHEN priority > 5
        THEN 64 + (pg_catalog.hashtext(coalesce(key, aggregate_type || ':' || aggregate_id, event_id::text) COLLATE "C") & 7)
        ELSE pg_catalog.hashtext(coalesce(key, aggregate_type || ':' || aggregate_id, event_id::text) COLLATE "C") & 63
    END)::smallint
    $$;

CREATE TABLE oncommit.outbox (
    -- Cache 1: a session that drew ids ahead would commit them far below everybody else's.
    id             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    created_at     timestamptz NOT NULL DEFAULT oncommit.now(),
    -- When a row that is not simply pending may be taken: end of a reservation, end of a back-off, infinity for a parked head.
    available_at   timestamptz,
    event_id       uuid        NOT NULL DEFAULT oncommit.make_id(),
    saga_id        uuid,
    attempts       integer     NOT NULL DEFAULT 0,
    crashes        integer     NOT NULL DEFAULT 0,
    max_attempts   integer,
    schema_version integer     NOT NULL DEFAULT 1,
    priority       smallint    NOT NULL DEFAULT 5,
    -- Left out by plain SQL: set by keep_rules(), see there.
    lane           smallint    NOT NULL,
    state          text        COLLATE "C" NOT NULL DEFAULT 'pending',
    sink           text        COLLATE "C" NOT NULL DEFAULT 'main',
    event_type     text        COLLATE "C" NOT NULL,
    aggregate_type text        COLLATE "C",
    aggregate_id   text        COLLATE "C",
    key            text        COLLATE "C",
    topic          text        COLLATE "C",
    content_type   text        COLLATE "C" NOT NULL DEFAULT 'application/json',
    correlation_id text        COLLATE "C",
    causation_id   text        COLLATE "C",
    -- json, not jsonb: the bytes go through as they were written, and it measures faster (docs/adr).
    headers        json        NOT NULL DEFAULT '{}',
    payload        json,
    data           bytea,
    last_error     text,

    -- The scan order of the relay, and the replica identity that logical replication asks for. This and the id of the
    -- event are the only indexes: each further one costs every writer.
    CONSTRAINT outbox_scan      PRIMARY KEY (sink, lane, id),
    CONSTRAINT outbox_event_id  UNIQUE (event_id)
    -- What else a row has to keep to: keep_rules() below.
) WITH (
    -- Rows live for milliseconds: vacuum by count of dead rows, not by share of the table, and don't let it nap.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE oncommit.outbox IS 'Live events, written in the transaction that they tell of. INSERT from any language: event_type, aggregate_type, aggregate_id and payload are enough.';

-- The rules of a row, and its lane.
--
-- One function, and no CHECK constraints or generated column, which would say the same: PostgreSQL reads and plans those
-- anew in every statement, and a single INSERT spent more than half of its time on that (docs/adr/0007). What is refused
-- looks as if a constraint of that name had refused it. Rows that come by replication or from a dump were looked at where
-- they were born.
CREATE FUNCTION oncommit.keep_rules() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    broken text;
    its_lane constant smallint := oncommit.lane_of(NEW.priority, NEW.key, NEW.aggregate_type, NEW.aggregate_id, NEW.event_id);
BEGIN
    broken := CASE
        WHEN TG_OP = 'INSERT' AND NEW.state NOT IN ('pending', 'optimistic')
        THEN 'outbox_birth: an event cannot begin its life as ' || NEW.state
        WHEN NEW.state NOT IN ('pending', 'optimistic', 'failed', 'dead_letter')
        THEN 'outbox_state: an event here is pending, optimistic, failed or dead_letter'
        WHEN (NEW.state = 'pending') <> (NEW.available_at IS NULL)
        THEN 'outbox_due: a pending event is due now and has no available_at, any other has one; for later, there is outbox_delayed'
        WHEN NEW.priority NOT BETWEEN 0 AND 9
        THEN 'outbox_priority: a priority is a number from 0 to 9'
        WHEN (NEW.aggregate_type IS NULL) <> (NEW.aggregate_id IS NULL)
        THEN 'outbox_aggregate: an aggregate has a type and an id, or there is none'
        WHEN NEW.payload IS NOT NULL AND NEW.data IS NOT NULL
        THEN 'outbox_body: an event has a payload (JSON) or data (bytes), not both'
        WHEN pg_catalog.json_typeof(NEW.headers) <> 'object'
        THEN 'outbox_headers: headers are a JSON object'
        WHEN NEW.event_type = '' OR NEW.sink = ''
        THEN 'outbox_names: event_type and sink have a name'
        -- The limits of oncommit.checks (a test compares them), so that nothing is written which the archive's indexes, whose
        -- entries end at 2,700 bytes, could never take.
        WHEN pg_catalog.octet_length(NEW.event_type) > 255
            OR pg_catalog.octet_length(NEW.sink) > 63
            OR pg_catalog.octet_length(NEW.topic) > 255
            OR pg_catalog.octet_length(NEW.aggregate_type) > 255
            OR pg_catalog.octet_length(NEW.aggregate_id) > 1024
            OR pg_catalog.octet_length(NEW.key) > 1024
            OR pg_catalog.octet_length(NEW.content_type) > 255
            OR pg_catalog.octet_length(NEW.correlation_id) > 512
            OR pg_catalog.octet_length(NEW.causation_id) > 512
        THEN 'outbox_lengths: in bytes of UTF-8, key and aggregate_id end at 1024, correlation_id and causation_id at 512, sink at 63, other names at 255'
        WHEN NEW.schema_version < 1
        THEN 'outbox_version: versions of a schema begin at 1'
        WHEN NEW.attempts < 0 OR NEW.crashes < 0 OR NEW.max_attempts < 1
        THEN 'outbox_counts: counts are not negative, and max_attempts is at least 1'
    END;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION '%', pg_catalog.split_part(broken, ': ', 2)
            USING ERRCODE = 'check_violation', CONSTRAINT = pg_catalog.split_part(broken, ': ', 1),
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    ELSIF NEW.lane <> its_lane THEN
        RAISE EXCEPTION 'the lane follows from priority and key; leave it out'
            USING ERRCODE = 'generated_always', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = 'lane';
    END IF;
    NEW.lane := its_lane;
    RETURN NEW;
END
$$;

-- Who leaves the lane out, as SQL by hand and other languages do, has the row looked at. Who gives it vouches for the row:
-- oncommit's own writer has checked the event in Python and asks lane_of() itself, which halves the price of its INSERT.
CREATE TRIGGER outbox_birth BEFORE INSERT ON oncommit.outbox FOR EACH ROW
    WHEN (NEW.lane IS NULL)
    EXECUTE FUNCTION oncommit.keep_rules();

-- By its name the last of the triggers before an update: an illegal move is told as such first.
CREATE TRIGGER outbox_rules BEFORE UPDATE ON oncommit.outbox FOR EACH ROW
    EXECUTE FUNCTION oncommit.keep_rules();

-- Only ever run to refuse: the conditions stand in the triggers.
CREATE FUNCTION oncommit.refuse_move() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF OLD.state IS DISTINCT FROM NEW.state THEN
        RAISE EXCEPTION 'event % cannot go from % to %', OLD.event_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_moves', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                  HINT = 'The legal moves are drawn in the documentation under "states".';
    END IF;
    RAISE EXCEPTION 'what orders and names event % cannot change while it lives', OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_identity', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
              HINT = 'event_id, sink, priority, key and aggregate are fixed. Park or discard the event and add another.';
END
$$;

-- Same list as oncommit.states; a test compares the two, move by move.
CREATE TRIGGER outbox_moves BEFORE UPDATE OF state ON oncommit.outbox FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN (
        'pending>optimistic', 'optimistic>pending',
        'pending>failed', 'failed>pending',
        'pending>dead_letter', 'failed>dead_letter', 'dead_letter>pending'))
    EXECUTE FUNCTION oncommit.refuse_move();

CREATE TRIGGER outbox_identity BEFORE UPDATE OF event_id, sink, priority, key, aggregate_type, aggregate_id
    ON oncommit.outbox FOR EACH ROW
    WHEN ((OLD.event_id, OLD.sink, OLD.priority, OLD.key, OLD.aggregate_type, OLD.aggregate_id)
          IS DISTINCT FROM (NEW.event_id, NEW.sink, NEW.priority, NEW.key, NEW.aggregate_type, NEW.aggregate_id))
    EXECUTE FUNCTION oncommit.refuse_move();

-- Events that may not go before their time. They wait aside, cost the relay nothing and hold back nobody; when due they
-- are moved into outbox under a new id, which is their place in the order of their key.
CREATE TABLE oncommit.outbox_delayed (
    id             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    created_at     timestamptz NOT NULL DEFAULT oncommit.now(),
    not_before     timestamptz NOT NULL,
    event_id       uuid        NOT NULL DEFAULT oncommit.make_id(),
    saga_id        uuid,
    max_attempts   integer,
    schema_version integer     NOT NULL DEFAULT 1,
    priority       smallint    NOT NULL DEFAULT 5,
    sink           text        COLLATE "C" NOT NULL DEFAULT 'main',
    event_type     text        COLLATE "C" NOT NULL,
    aggregate_type text        COLLATE "C",
    aggregate_id   text        COLLATE "C",
    key            text        COLLATE "C",
    topic          text        COLLATE "C",
    content_type   text        COLLATE "C" NOT NULL DEFAULT 'application/json',
    correlation_id text        COLLATE "C",
    causation_id   text        COLLATE "C",
    headers        json        NOT NULL DEFAULT '{}',
    payload        json,
    data           bytea,

    -- Due ones first, in the order in which they were written where the time is the same.
    CONSTRAINT outbox_delayed_due       PRIMARY KEY (not_before, id),
    CONSTRAINT outbox_delayed_event_id  UNIQUE (event_id),

    -- As strict as outbox, so that the move when due cannot fail.
    CONSTRAINT outbox_delayed_finite    CHECK (pg_catalog.isfinite(not_before)),
    CONSTRAINT outbox_delayed_priority  CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT outbox_delayed_aggregate CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CONSTRAINT outbox_delayed_body      CHECK (payload IS NULL OR data IS NULL),
    CONSTRAINT outbox_delayed_headers   CHECK (pg_catalog.json_typeof(headers) = 'object'),
    CONSTRAINT outbox_delayed_names     CHECK (event_type <> '' AND sink <> ''),
    -- The limits of oncommit.checks (a test compares them), so that nothing is written which the archive's indexes, whose
    -- entries end at 2,700 bytes, could never take.
    CONSTRAINT outbox_delayed_lengths   CHECK (
        pg_catalog.octet_length(event_type) <= 255
        AND pg_catalog.octet_length(sink) <= 63
        AND pg_catalog.octet_length(topic) <= 255
        AND pg_catalog.octet_length(aggregate_type) <= 255
        AND pg_catalog.octet_length(aggregate_id) <= 1024
        AND pg_catalog.octet_length(key) <= 1024
        AND pg_catalog.octet_length(content_type) <= 255
        AND pg_catalog.octet_length(correlation_id) <= 512
        AND pg_catalog.octet_length(causation_id) <= 512),
    CONSTRAINT outbox_delayed_version   CHECK (schema_version > 0),
    CONSTRAINT outbox_delayed_counts    CHECK (max_attempts > 0)
);

COMMENT ON TABLE oncommit.outbox_delayed IS 'Events that may not go before their time.';
