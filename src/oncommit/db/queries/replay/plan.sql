-- What a replay would publish again, by type, topic and sink. Reads only, one snapshot; days outside of the range are
-- ruled out, and of the others what lies outside, by the index of ranges.
SELECT a.event_type, a.topic, a.sink, count(*) AS events, min(a.archived_at) AS first, max(a.archived_at) AS last
FROM oncommit.outbox_archive a
WHERE a.archived_at >= $1::timestamptz AND a.archived_at < $2::timestamptz
  AND ($3::text[] IS NULL OR a.event_type = ANY ($3))
  AND ($4::text IS NULL OR a.aggregate_type = $4)
  AND ($5::text IS NULL OR a.aggregate_id = $5)
  AND ($6::text IS NULL OR a.topic = $6)
  AND ($7::text IS NULL OR a.sink = $7)
  AND (a.archived_at, a.id) > ($8::timestamptz, $9::bigint)
GROUP BY a.event_type, a.topic, a.sink
ORDER BY events DESC, a.event_type, a.topic, a.sink
