-- Sent events, for as long as they are kept. Partitioned by day (UTC) of archiving: retention drops whole days and
-- never deletes rows. There is no default partition: it would have to be scanned whenever a day is added.

CREATE TABLE oncommit.outbox_archive (
    id             bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    sent_at        timestamptz NOT NULL,
    archived_at    timestamptz NOT NULL DEFAULT oncommit.now(),
    event_id       uuid        NOT NULL,
    saga_id        uuid,
    attempts       integer     NOT NULL,
    crashes        integer     NOT NULL,
    max_attempts   integer,
    schema_version integer     NOT NULL,
    priority       smallint    NOT NULL,
    lane           smallint    NOT NULL,
    sink           text        COLLATE "C" NOT NULL,
    event_type     text        COLLATE "C" NOT NULL,
    aggregate_type text        COLLATE "C",
    aggregate_id   text        COLLATE "C",
    key            text        COLLATE "C",
    topic          text        COLLATE "C",
    content_type   text        COLLATE "C" NOT NULL,
    correlation_id text        COLLATE "C",
    causation_id   text        COLLATE "C",
    headers        json        NOT NULL,
    payload        json,
    data           bytea,
    last_error     text
) PARTITION BY RANGE (archived_at);

COMMENT ON TABLE oncommit.outbox_archive IS 'Sent events, partitioned by the day (UTC) on which they were archived.';

-- Nothing unique: the relay is the only writer, and each tree costs it a tenth of its rate. The id serves the look-up of
-- ids that a caller gave, the aggregate and the correlation serve people.
CREATE INDEX outbox_archive_event_id ON oncommit.outbox_archive (event_id);
CREATE INDEX outbox_archive_aggregate ON oncommit.outbox_archive (aggregate_id) WHERE aggregate_id IS NOT NULL;
CREATE INDEX outbox_archive_correlation ON oncommit.outbox_archive (correlation_id) WHERE correlation_id IS NOT NULL;
-- Lists by time read the end of the archive and not the whole of it. Rows lie in the order of this column, so a few pages
-- of ranges will do, which cost the relay nothing that could be measured.
CREATE INDEX outbox_archive_archived_at ON oncommit.outbox_archive
    USING brin (archived_at) WITH (pages_per_range = 32, autosummarize = on);

-- Makes the partition of one day if it is missing; says whether it did. Built standing alone and then attached, which
-- takes no lock that a reader or a writer of the archive would notice; the check spares the attach its scan. Two
-- callers at once: the advisory lock lets the second wait and then find the first one's work.
CREATE FUNCTION oncommit.make_archive_partition(day date) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    partition_name constant text := 'outbox_archive_' || pg_catalog.to_char(day, 'YYYYMMDD');
    lower_bound constant timestamptz := day::timestamp AT TIME ZONE 'UTC';
    upper_bound constant timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('oncommit:' || partition_name, 0));
    IF pg_catalog.to_regclass(pg_catalog.format('%I.%I', 'oncommit', partition_name)) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE pg_catalog.format(
        'CREATE TABLE %I.%I (LIKE %I.outbox_archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE)',
        'oncommit', partition_name, 'oncommit');
    EXECUTE pg_catalog.format(
        'ALTER TABLE %I.%I ADD CONSTRAINT %I CHECK (archived_at >= %L AND archived_at < %L)',
        'oncommit', partition_name, partition_name || '_day', lower_bound, upper_bound);
    EXECUTE pg_catalog.format(
        'ALTER TABLE %I.outbox_archive ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
        'oncommit', 'oncommit', partition_name, lower_bound, upper_bound);
    EXECUTE pg_catalog.format(
        'ALTER TABLE %I.%I DROP CONSTRAINT %I', 'oncommit', partition_name, partition_name || '_day');
    RETURN true;
END
$$;

-- A week ahead, so that an outbox works before its first relay does; from then on the relay keeps a week ahead.
SELECT oncommit.make_archive_partition((oncommit.now() AT TIME ZONE 'UTC')::date + ahead)
FROM pg_catalog.generate_series(0, 7) AS ahead;
