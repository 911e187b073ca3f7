-- The second half of adding ids that a database may know already: rows that this transaction has just written are taken
-- back where the same event was delivered, died or waits for its time.
--
-- Why after the insert and not before: a look before it could miss an event that a relay moves to the archive between
-- the two. The insert has waited for whoever held the id; this statement's snapshot is younger (read committed) and the
-- relay moves a row in one statement, so the event is in one of the places looked at here. Only ids that the insert
-- returned come in, and rows of an open transaction are seen by nobody else, so nobody else's row is deleted.
--
-- Above read committed the snapshot is the transaction's. An event that was live in it and has been delivered since
-- shows as a second row under the same id: the condition on `twin` makes the DELETE reach for it, which is the
-- serialization failure that such a transaction has to expect. One that was added *and* delivered since the snapshot
-- leaves no trace in it and is added again: whoever adds ids of his own above read committed takes the snapshot late, or
-- leaves the second delivery to the inbox.
WITH written AS MATERIALIZED (
    SELECT w.event_id FROM unnest($1::uuid[]) AS w (event_id)
), delayed AS MATERIALIZED (
    SELECT w.event_id FROM unnest($2::uuid[]) AS w (event_id)
), ended AS MATERIALIZED (
    SELECT a.event_id FROM oncommit.outbox_archive a
    WHERE a.event_id IN (SELECT event_id FROM written UNION ALL SELECT event_id FROM delayed)
    UNION ALL
    SELECT d.event_id FROM oncommit.dead_letter d
    WHERE d.source = 'outbox'
      AND d.event_id IN (SELECT event_id FROM written UNION ALL SELECT event_id FROM delayed)
), live AS (
    DELETE FROM oncommit.outbox o
    WHERE o.event_id IN (SELECT event_id FROM written)
      AND (o.event_id IN (SELECT event_id FROM ended)
           OR EXISTS (SELECT FROM oncommit.outbox_delayed w WHERE w.event_id = o.event_id)
           OR EXISTS (SELECT FROM oncommit.outbox twin WHERE twin.event_id = o.event_id AND twin.id <> o.id))
    RETURNING o.event_id
), later AS (
    DELETE FROM oncommit.outbox_delayed o
    WHERE o.event_id IN (SELECT event_id FROM delayed)
      AND (o.event_id IN (SELECT event_id FROM ended)
           OR EXISTS (SELECT FROM oncommit.outbox l WHERE l.event_id = o.event_id)
           OR EXISTS (SELECT FROM oncommit.outbox_delayed twin WHERE twin.event_id = o.event_id AND twin.id <> o.id))
    RETURNING o.event_id
)
SELECT event_id FROM live
UNION ALL
SELECT event_id FROM later
