-- Freshness of each template: its last upload, its last load, and when everything was last known to be loaded.
-- Grain: one row per template that has imports, and one without a name for imports without a template.
--
-- fresh_as_of: the start of the last full incremental run that succeeded, the same in each row. Everything that the
-- service had then is loaded; later changes may not be. A run that read only imports of one `status` is not full.
WITH last_run AS (
    SELECT MAX(started_at) AS fresh_as_of
    FROM sync_runs
    WHERE status = 'succeeded' AND mode = 'incremental' AND window_since IS NULL AND window_until IS NULL
), by_template AS (
    SELECT
        template_slug,
        MAX(template) AS template,
        COUNT(*) AS imports,
        CAST(SUM(CASE WHEN is_complete THEN 0 ELSE 1 END) AS BIGINT) AS imports_incomplete,
        MAX(uploaded_at) AS last_upload_at,
        MAX(changed_at) AS last_change_at,
        MAX(last_synced_at) AS last_loaded_at
    FROM v_imports
    GROUP BY template_slug
)
SELECT
    t.template,
    t.template_slug,
    t.imports,
    t.imports_incomplete,
    t.last_upload_at,
    t.last_change_at,
    t.last_loaded_at,
    r.fresh_as_of,
    epoch(now() - r.fresh_as_of) / 3600.0 AS age_hours
FROM by_template AS t
CROSS JOIN last_run AS r
