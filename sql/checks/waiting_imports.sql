-- Imports of which the listed version is not loaded yet; the next run reads them.
-- Grain: one row per live import.
--
-- Imports that were never read are in imports_out_of_ledger.
SELECT
    i.slug AS import_slug,
    i.template__name AS template,
    i.updated_at AS listed_version,
    s.updated_at AS loaded_version,
    s.last_synced_at
FROM imports AS i
INNER JOIN sync_imports AS s ON s.slug = i.slug
WHERE i._deleted_at IS NULL
    AND (
        s.state = 'deleted'
        OR (s.state = 'synced' AND i.updated_at > s.updated_at AND COALESCE(s.due, '') <> 'vanished')
    )
ORDER BY i.slug
