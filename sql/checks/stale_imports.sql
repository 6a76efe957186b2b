-- Imports that were begun and not finished: not completed, and unchanged for more than a day.
-- Grain: one row per live import.
SELECT
    import_slug,
    template,
    uploader,
    status,
    row_count,
    changed_at,
    epoch(now() - changed_at) / 86400.0 AS days_unchanged
FROM v_imports
WHERE status <> 'completed' AND changed_at < now() - INTERVAL 1 DAY
ORDER BY changed_at, import_slug
