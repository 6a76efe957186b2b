-- Keys that occur more than once.
-- Grain: one row per table and key.
SELECT 'imports' AS table_name, slug, COUNT(*) AS times
FROM imports
GROUP BY slug
HAVING COUNT(*) > 1
UNION ALL
SELECT 'records' AS table_name, slug, COUNT(*) AS times
FROM records
GROUP BY slug
HAVING COUNT(*) > 1
UNION ALL
SELECT 'sync_imports' AS table_name, slug, COUNT(*) AS times
FROM sync_imports
GROUP BY slug
HAVING COUNT(*) > 1
UNION ALL
SELECT 'sync_runs' AS table_name, run_id AS slug, COUNT(*) AS times
FROM sync_runs
GROUP BY run_id
HAVING COUNT(*) > 1
ORDER BY 1, 2
