-- Everything that a migration can make in a schema, one line or block each, as PostgreSQL itself describes it.
-- Partitions are left out, since their names have dates; a test holds them to their parent.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.reloptions
    FROM pg_class c
    WHERE c.relnamespace = to_regnamespace($1) AND NOT c.relispartition
)
SELECT line FROM (
    SELECT 1 AS part, c.relname::text AS name, 0 AS place, format('table %s%s%s', c.relname,
        ' partition by ' || pg_get_partkeydef(c.oid), ' with ' || array_to_string(c.reloptions, ', ')) AS line
    FROM ours c WHERE c.relkind IN ('r', 'p')
    UNION ALL
    SELECT 1, c.relname, a.attnum, format('  column %s %s%s%s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attcollation <> t.typcollation THEN ' collate ' || l.collname END,
        CASE WHEN a.attnotnull THEN ' not null' END,
        CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity by default' END,
        CASE WHEN a.attgenerated = 's' THEN ' generated ' WHEN d.adbin IS NOT NULL THEN ' default ' END,
        pg_get_expr(d.adbin, d.adrelid))
    FROM ours c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p')
    UNION ALL
    -- Not-null constraints stand at their columns; from PostgreSQL 18 on they would be here a second time.
    SELECT 1, c.relname, 2000, format('  constraint %s %s', k.conname, pg_get_constraintdef(k.oid))
    FROM ours c JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype <> 'n'
    UNION ALL
    SELECT 1, c.relname, 3000, '  ' || pg_get_indexdef(i.indexrelid)
    FROM ours c JOIN pg_index i ON i.indrelid = c.oid
    UNION ALL
    SELECT 1, c.relname, 4000, '  ' || pg_get_triggerdef(g.oid)
    FROM ours c JOIN pg_trigger g ON g.tgrelid = c.oid AND NOT g.tgisinternal
    UNION ALL
    SELECT CASE c.relkind WHEN 'v' THEN 3 ELSE 1 END, c.relname, 5000, format('  comment %s', obj_description(c.oid, 'pg_class'))
    FROM ours c WHERE c.relkind IN ('r', 'p', 'v') AND obj_description(c.oid, 'pg_class') IS NOT NULL
    UNION ALL
    SELECT 2, c.relname, 0, format('sequence %s %s cache %s', c.relname, format_type(s.seqtypid, NULL), s.seqcache)
    FROM ours c JOIN pg_sequence s ON s.seqrelid = c.oid
    UNION ALL
    SELECT 3, c.relname, 0, format(E'view %s\n%s', c.relname, pg_get_viewdef(c.oid))
    FROM ours c WHERE c.relkind IN ('v', 'm')
    UNION ALL
    SELECT 4, p.proname || pg_get_function_identity_arguments(p.oid), 0, rtrim(pg_get_functiondef(p.oid))
    FROM pg_proc p WHERE p.pronamespace = to_regnamespace($1)
    UNION ALL
    SELECT 5, y.typname, 0, format('type %s', y.typname)
    FROM pg_type y WHERE y.typnamespace = to_regnamespace($1) AND y.typtype IN ('e', 'd')
) AS everything
ORDER BY part, name, place, line COLLATE "C";
