-- Which of the columns that this code writes are missing from the database; asked once, before the first add, so that a
-- forgotten migration does not abort the caller's transaction. Reads the catalog alone, which every role may.
SELECT
    EXISTS (
        SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'oncommit' AND c.relname IN ('outbox', 'outbox_delayed', 'outbox_archive', 'dead_letter')
        HAVING count(*) = 4
    ) AS there,
    ARRAY(
        SELECT wanted.name
        FROM unnest($1::text[]) AS wanted (name)
        WHERE NOT EXISTS (
            SELECT FROM pg_catalog.pg_attribute a
            JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'oncommit' AND c.relname = 'outbox' AND a.attname = wanted.name
              AND a.attnum > 0 AND NOT a.attisdropped)
        ORDER BY 1
    )::text[] AS missing
