-- Rows of live imports, and imports of the listing, that could not be loaded when they were last read, with the reason.
-- Grain: one row per rejected row, and one per import that the latest run could not read in the listing.
WITH latest AS (
    SELECT run_id FROM sync_runs
    WHERE SUBSTR(mode, 1, 11) = 'incremental' AND status <> 'running'
    ORDER BY started_at DESC
    LIMIT 1
)
SELECT
    r.import_slug,
    i.template__name AS template,
    r.record_slug,
    r.reason,
    r.seen_at,
    r.run_id,
    r.payload
FROM sync_rejects AS r
LEFT JOIN imports AS i ON i.slug = r.import_slug
LEFT JOIN sync_imports AS s ON s.slug = r.import_slug
WHERE
    CASE
        WHEN r.record_slug IS NULL AND r.reason LIKE 'import: %'
            THEN r.run_id IN (SELECT run_id FROM latest)
        ELSE
            i.slug IS NOT NULL
            AND i._deleted_at IS NULL
            AND (s.state IS NULL OR s.state <> 'excluded')
            AND NOT EXISTS (
                SELECT 1 FROM sync_rejects AS later
                WHERE later.import_slug = r.import_slug AND later.seen_at > r.seen_at
            )
            AND NOT COALESCE(s.records_rejected = 0 AND s.last_synced_at > r.seen_at, FALSE)
    END
ORDER BY r.seen_at DESC, r.import_slug, r.record_slug
