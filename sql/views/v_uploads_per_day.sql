-- Uploads per day and template: imports, rows, and the number of imports that are not completely loaded.
-- Grain: one row per day (UTC, when the import was created) and template.
SELECT
    upload_day,
    template,
    template_slug,
    COUNT(*) AS imports,
    CAST(SUM(CASE WHEN is_complete THEN 0 ELSE 1 END) AS BIGINT) AS imports_incomplete,
    COUNT(DISTINCT uploader) AS uploaders,
    CAST(SUM(row_count) AS BIGINT) AS row_count,
    CAST(SUM(rows_loaded) AS BIGINT) AS rows_loaded,
    CAST(SUM(rows_failed) AS BIGINT) AS rows_failed
FROM v_imports
GROUP BY upload_day, template, template_slug
