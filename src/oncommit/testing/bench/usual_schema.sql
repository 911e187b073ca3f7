-- The outbox table as most projects have it, for comparison; nothing of oncommit uses it.
--
-- One table for everything that ever happened: a random id as its key, a status column that is updated when the event
-- goes out, jsonb, and an index for each question that somebody will ask: what is pending, what is to be retried, what
-- happened to this aggregate, what of this type. Five indexes, the primary key among them; each is paid for by
-- every business transaction.
CREATE TABLE bench_usual_outbox (
    id             uuid         PRIMARY KEY,
    aggregate_type varchar(255) NOT NULL,
    aggregate_id   varchar(255) NOT NULL,
    event_type     varchar(255) NOT NULL,
    payload        jsonb        NOT NULL,
    headers        jsonb        NOT NULL DEFAULT '{}',
    status         varchar(20)  NOT NULL DEFAULT 'pending',
    retry_count    integer      NOT NULL DEFAULT 0,
    next_retry_at  timestamptz,
    created_at     timestamptz  NOT NULL DEFAULT now(),
    published_at   timestamptz,
    last_error     text
);
CREATE INDEX ON bench_usual_outbox (status, created_at);
CREATE INDEX ON bench_usual_outbox (next_retry_at);
CREATE INDEX ON bench_usual_outbox (aggregate_type, aggregate_id);
CREATE INDEX ON bench_usual_outbox (event_type, created_at);
