-- Imports whose number of rows differs between the service, the ledger and the raw rows.
-- Grain: one row per live import that has been read and does not reconcile.
--
-- Failed imports are in failed_imports. Counts are those of the version that was read, because the listed one may have
-- changed while it was read. The number of rows may differ from row_count if the import is not completed, or if
-- reconcile = "off" accepted the difference.
WITH raw_rows AS (
    SELECT import_slug, COUNT(*) AS live
    FROM records
    WHERE _deleted_at IS NULL
    GROUP BY import_slug
)
SELECT
    i.slug AS import_slug,
    i.template__name AS template,
    s.state,
    CASE WHEN i.updated_at = s.updated_at THEN i.row_count ELSE s.row_count END AS row_count,
    s.records_loaded AS rows_loaded,
    s.records_rejected AS rows_rejected,
    CASE WHEN s.has_raw THEN COALESCE(r.live, 0) END AS raw_rows,
    s.error
FROM imports AS i
INNER JOIN sync_imports AS s ON s.slug = i.slug
LEFT JOIN raw_rows AS r ON r.import_slug = i.slug
WHERE i._deleted_at IS NULL
    AND s.state IN ('synced', 'unreconciled')
    AND (
        s.state = 'unreconciled'
        OR (i.updated_at = s.updated_at AND i.row_count <> s.row_count)
        OR (s.has_raw AND COALESCE(r.live, 0) <> s.records_loaded)
    )
ORDER BY i.slug
