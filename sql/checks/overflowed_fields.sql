-- Fields without a column, because their table has reached its limit; their values are in its column `_more`.
-- Grain: one row per typed table that has such fields.
--
-- Usually one upload brought them: `SELECT _import_slug, COUNT(*) FROM <table> WHERE _more IS NOT NULL GROUP BY 1` names
-- it. `importer-sync rebuild` gives columns that are left to the fields with values in most rows.
SELECT
    table_name,
    COUNT(*) AS fields,
    MIN(path) AS example_field,
    MIN(first_seen_at) AS first_seen_at,
    MAX(last_seen_at) AS last_seen_at
FROM sync_fields
WHERE data_type = 'overflowed'
GROUP BY table_name
ORDER BY table_name
