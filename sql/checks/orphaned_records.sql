-- Live raw rows whose import is unknown or deleted.
-- Grain: one row per import that has such rows.
SELECT
    r.import_slug,
    CASE WHEN MAX(i.slug) IS NULL THEN 'unknown' ELSE 'deleted' END AS import_is,
    COUNT(*) AS records,
    MIN(r.slug) AS example_record_slug
FROM records AS r
LEFT JOIN imports AS i ON i.slug = r.import_slug
WHERE r._deleted_at IS NULL AND (i.slug IS NULL OR i._deleted_at IS NOT NULL)
GROUP BY r.import_slug
ORDER BY r.import_slug
