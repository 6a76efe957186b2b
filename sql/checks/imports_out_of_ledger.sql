-- Imports without a row in the ledger, and rows of the ledger without an import.
-- Grain: one row per import that is only in one of the two tables.
SELECT
    COALESCE(i.slug, s.slug) AS import_slug,
    i.template__name AS template,
    CASE WHEN i.slug IS NULL THEN 'imports' ELSE 'sync_imports' END AS missing_in,
    s.state,
    s.error
FROM imports AS i
FULL JOIN sync_imports AS s ON s.slug = i.slug
WHERE (s.slug IS NULL AND i._deleted_at IS NULL) OR (i.slug IS NULL AND s.state <> 'deleted')
ORDER BY 1
