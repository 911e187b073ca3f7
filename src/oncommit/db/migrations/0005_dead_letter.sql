-- What nobody will try again by itself, from outbox, consumers and sagas, in one shape, so that one tool serves all three.

CREATE TABLE oncommit.dead_letter (
    id              bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    -- Where it died: the relay of a sink, a consumer, or a saga; origin is the name of that sink, consumer or saga.
    source          text        COLLATE "C" NOT NULL CHECK (source IN ('outbox', 'consumer', 'saga')),
    origin          text        COLLATE "C" NOT NULL,
    -- The broker's message id; foreign producers need not use UUIDs, hence the text beside the uuid.
    message_id      text        COLLATE "C" NOT NULL,
    event_id        uuid,
    -- The place in the outbox that a replay under "park_key" returns to.
    outbox_id       bigint,
    lane            smallint,
    saga_id         uuid,

    -- dead: waits for an operator. replaying: one replay at a time has it. replayed, discarded: history until it expires.
    state           text        COLLATE "C" NOT NULL DEFAULT 'dead'
                    CHECK (state IN ('dead', 'replaying', 'replayed', 'discarded')),
    -- A replay opens a new round: attempts start from zero, what happened before moves into history.
    round           integer     NOT NULL DEFAULT 1 CHECK (round > 0),
    attempts        integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    crashes         integer     NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    max_attempts    integer,
    reason          text        COLLATE "C" NOT NULL
                    CHECK (reason IN ('exhausted', 'permanent', 'crashed', 'undecodable', 'unknown_version', 'operator')),
    error_type      text,
    error_message   text,
    error_trace     text,
    history         jsonb       NOT NULL DEFAULT '[]' CHECK (pg_catalog.jsonb_typeof(history) = 'array'),

    created_at      timestamptz,
    first_failed_at timestamptz,
    died_at         timestamptz NOT NULL DEFAULT oncommit.now(),
    expires_at      timestamptz NOT NULL,

    -- The message itself, as it was.
    priority        smallint    NOT NULL DEFAULT 5,
    schema_version  integer,
    event_type      text        COLLATE "C",
    aggregate_type  text        COLLATE "C",
    aggregate_id    text        COLLATE "C",
    key             text        COLLATE "C",
    topic           text        COLLATE "C",
    content_type    text        COLLATE "C",
    correlation_id  text        COLLATE "C",
    causation_id    text        COLLATE "C",
    -- Where a consumer read it: topic, partition and offset, stream and sequence, queue and delivery tag.
    position        jsonb,
    headers         json        NOT NULL DEFAULT '{}',
    payload         json,
    data            bytea,

    -- One record a message: dying again in a later round finds its own history.
    CONSTRAINT dead_letter_message UNIQUE (source, origin, message_id),
    CONSTRAINT dead_letter_body CHECK (payload IS NULL OR data IS NULL)
);

COMMENT ON TABLE oncommit.dead_letter IS 'What failed for good, with why, until an operator acts or it expires.';

-- Lists are read newest first; expiry reads the oldest.
CREATE INDEX dead_letter_died_at ON oncommit.dead_letter (died_at, id);
CREATE INDEX dead_letter_event_id ON oncommit.dead_letter (event_id) WHERE event_id IS NOT NULL;
