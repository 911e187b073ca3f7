-- Who serves which lane. A lane belongs to one relay at a time; every right to act is an owner and an epoch in these rows,
-- never a session lock, which would not survive a connection pooler in transaction mode.

CREATE TABLE oncommit.outbox_relay (
    relay_id   uuid        PRIMARY KEY,
    name       text        NOT NULL,
    sinks      text[]      NOT NULL,
    version    text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT oncommit.now(),
    heartbeat  timestamptz NOT NULL DEFAULT oncommit.now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

COMMENT ON TABLE oncommit.outbox_relay IS 'One heartbeat a relay. Its lanes live as long as it does.';

CREATE TABLE oncommit.outbox_lane (
    sink       text     COLLATE "C" NOT NULL,
    lane       smallint NOT NULL CHECK (lane BETWEEN 0 AND 71),
    owner      uuid,
    -- One more at every take-over: what an earlier owner still wants to write no longer matches.
    epoch      bigint   NOT NULL DEFAULT 0,
    -- One more whenever somebody changes a row that the owner may have passed.
    rescan     bigint   NOT NULL DEFAULT 0,
    settled_to bigint   NOT NULL DEFAULT 0,
    PRIMARY KEY (sink, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

COMMENT ON TABLE oncommit.outbox_lane IS 'Owner and epoch of each lane; written at take-over, not at renewal.';

CREATE TABLE oncommit.outbox_claim (
    relay_id   uuid        NOT NULL,
    sink       text        COLLATE "C" NOT NULL,
    batch      bigint      NOT NULL,
    lane       smallint    NOT NULL,
    epoch      bigint      NOT NULL,
    first_id   bigint      NOT NULL,
    last_id    bigint      NOT NULL,
    -- How many rows of the range were in flight, and whether they were suspects, with nothing beside them.
    rows       integer     NOT NULL CHECK (rows > 0),
    alone      boolean     NOT NULL DEFAULT false,
    claimed_at timestamptz NOT NULL DEFAULT oncommit.now(),
    PRIMARY KEY (sink, lane, relay_id, batch, first_id),
    CHECK (first_id <= last_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

COMMENT ON TABLE oncommit.outbox_claim IS 'Batches in flight, as ranges of ids within a lane.';
