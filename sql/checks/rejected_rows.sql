-- Rows of live imports that could not be loaded when they were last read, with the reason.
-- Grain: one row per rejected row.
SELECT
    r.import_slug,
    i.template__name AS template,
    r.record_slug,
    r.reason,
    r.seen_at,
    r.run_id,
    r.payload
FROM sync_rejects AS r
INNER JOIN imports AS i ON i.slug = r.import_slug
LEFT JOIN sync_imports AS s ON s.slug = r.import_slug
WHERE
    i._deleted_at IS NULL
    AND (s.state IS NULL OR s.state <> 'excluded')
    AND NOT EXISTS (
        SELECT 1 FROM sync_rejects AS later WHERE later.import_slug = r.import_slug AND later.seen_at > r.seen_at
    )
    AND NOT COALESCE(s.records_rejected = 0 AND s.last_synced_at > r.seen_at, FALSE)
ORDER BY r.seen_at DESC, r.import_slug, r.record_slug
