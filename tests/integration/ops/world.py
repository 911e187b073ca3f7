"""One event in every situation there is, written as the relay would leave it."""

from __future__ import annotations

from uuid import UUID

# The last digits say which is which.
PREFIX = "00000000-0000-7000-8000-0000000000"


def known(number: int) -> UUID:
    return UUID(f"{PREFIX}{number:02}")


SENT, DEAD, CLAIMED, FAILED, LAPSED, RESERVED, PARKED, PENDING, URGENT, DELAYED = map(known, range(1, 11))

# All but the urgent one are of one order, in this write order; the sent one is the oldest, the delayed one is without
# a place yet.
FILL = f"""
INSERT INTO oncommit.outbox_archive (id, created_at, sent_at, event_id, attempts, crashes, schema_version, priority,
    lane, sink, event_type, aggregate_type, aggregate_id, content_type, headers, payload, correlation_id)
VALUES (0, now() - '9 days'::interval, now() - '9 days'::interval, '{SENT}', 1, 0, 1, 5,
    7, 'main', 'order.placed', 'order', '42', 'application/json', '{{"a": "b"}}', '{{"n": 1}}', 'talk-1');

INSERT INTO oncommit.outbox (event_id, event_type, aggregate_type, aggregate_id, payload, data, content_type, topic,
    correlation_id, sink, state, available_at, created_at)
SELECT event_id::uuid, event_type, 'order', '42', payload::json, data::bytea, type, topic, talk, sink, state,
    now() + until::interval, now() - ago::interval
FROM (VALUES
    (1, '{DEAD}', 'order.paid', '{{}}', NULL, 'application/json', 'paid', NULL, 'main', 'pending', NULL, '8 days'),
    (2, '{CLAIMED}', 'order.packed', '{{}}', NULL, 'application/json', NULL, 'talk-1', 'main', 'pending', NULL, '2 h'),
    (3, '{FAILED}', 'order.sent', NULL, '\\x00ff', 'application/avro', NULL, NULL, 'main', 'pending', NULL, '1 hour'),
    (4, '{LAPSED}', 'order.seen', NULL, NULL, 'application/json', NULL, NULL, 'main', 'optimistic', '-1 s', '30 min'),
    (5, '{RESERVED}', 'order.kept', NULL, NULL, 'application/json', NULL, NULL, 'main', 'optimistic', '1 h', '20 min'),
    (6, '{PARKED}', 'order.back', NULL, NULL, 'application/json', NULL, NULL, 'main', 'pending', NULL, '10 min'),
    (7, '{PENDING}', 'order.placed', '{{"b": 2}}', NULL, 'application/json', NULL, NULL, 'audit', 'pending', NULL, '5m')
) AS v (n, event_id, event_type, payload, data, type, topic, talk, sink, state, until, ago)
ORDER BY n;

INSERT INTO oncommit.outbox (event_id, event_type, key, priority) VALUES ('{URGENT}', 'alarm', 'house', 9);
INSERT INTO oncommit.outbox_delayed (event_id, event_type, aggregate_type, aggregate_id, not_before)
VALUES ('{DELAYED}', 'order.reminded', 'order', '42', now() + '1 day'::interval);

UPDATE oncommit.outbox SET state = 'failed', available_at = now() + '1 h'::interval, attempts = 3,
    last_error = E'BrokerTimeout: no answer\\n\\x1b[31mred'
WHERE event_id = '{FAILED}';
UPDATE oncommit.outbox SET state = 'dead_letter', available_at = 'infinity' WHERE event_id = '{PARKED}';

INSERT INTO oncommit.outbox_relay (relay_id, name, sinks, version)
VALUES ('{known(90)}', 'relay-a', '{{main}}', '1');
INSERT INTO oncommit.outbox_lane (sink, lane, owner, epoch)
SELECT sink, lane, '{known(90)}', 5 FROM oncommit.outbox WHERE event_id = '{CLAIMED}';
-- The claim of today, and one that was overtaken.
INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows)
SELECT '{known(90)}'::uuid, sink, 1, lane, 5, id, id, 1 FROM oncommit.outbox WHERE event_id = '{CLAIMED}'
UNION ALL
SELECT '{known(90)}'::uuid, sink, 2, lane, 4, id, id, 1 FROM oncommit.outbox WHERE event_id = '{FAILED}';

INSERT INTO oncommit.dead_letter (source, origin, message_id, event_id, outbox_id, lane, attempts, reason,
    error_message, created_at, expires_at, event_type, aggregate_type, aggregate_id, topic, content_type, payload)
SELECT 'outbox', sink, event_id::text, event_id, id, lane, 10, 'exhausted', 'too often', created_at,
    now() + '14 d'::interval, event_type, aggregate_type, aggregate_id, topic, content_type, payload
FROM oncommit.outbox WHERE event_id IN ('{DEAD}', '{PARKED}');
DELETE FROM oncommit.outbox WHERE event_id = '{DEAD}';
-- Dead, but not an event of this outbox.
INSERT INTO oncommit.dead_letter (source, origin, message_id, reason, expires_at)
VALUES ('consumer', 'billing', 'm-1', 'permanent', now());
"""
