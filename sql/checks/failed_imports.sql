-- Imports whose last read failed; each run reads them again.
-- Grain: one row per import.
SELECT
    s.slug AS import_slug,
    i.template__name AS template,
    s.attempts,
    s.error,
    s.last_synced_at,
    i.row_count,
    s.records_loaded AS rows_loaded
FROM sync_imports AS s
LEFT JOIN imports AS i ON i.slug = s.slug
WHERE s.state = 'failed'
ORDER BY s.slug
