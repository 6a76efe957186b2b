-- Field profile: type, share of nulls, and share of values that do not fit the type of their column.
-- Grain: one row per field of a typed table, over its live rows as they were last loaded.
--
-- Distinct values are in v_field_distinct, and how the share of nulls changed over time in v_field_nulls.
WITH named AS (
    SELECT
        template__slug AS template_slug,
        template__name AS template,
        ROW_NUMBER() OVER (PARTITION BY template__slug ORDER BY
            CASE WHEN _deleted_at IS NULL THEN 0 ELSE 1 END, updated_at DESC, slug
        ) AS place
    FROM imports
    WHERE template__slug IS NOT NULL
)
SELECT
    n.template,
    f.template_slug,
    f.table_name,
    f.path AS field,
    f.column_name,
    f.data_type,
    COALESCE(f.value_count, 0) + COALESCE(f.null_count, 0) AS row_count,
    COALESCE(f.value_count, 0) AS value_count,
    COALESCE(f.null_count, 0) AS null_count,
    COALESCE(f.conflict_count, 0) AS conflict_count,
    CAST(f.null_count AS DOUBLE) / NULLIF(f.value_count + f.null_count, 0) AS null_share,
    CAST(f.conflict_count AS DOUBLE) / NULLIF(f.value_count, 0) AS conflict_share,
    f.first_seen_at,
    f.last_seen_at
FROM sync_fields AS f
LEFT JOIN named AS n ON n.template_slug = f.template_slug AND n.place = 1
WHERE f.table_name <> 'imports'
