-- Fields of which more than one value in twenty does not fit the type of its column.
-- Grain: one row per field of a typed table.
--
-- No value is lost: the others are in the column's variants. `importer-sync rebuild` chooses the type again from all values.
SELECT
    table_name,
    field,
    column_name,
    data_type,
    value_count,
    conflict_count,
    round(CAST(conflict_share AS NUMERIC), 3) AS conflict_share
FROM v_fields
WHERE conflict_share > 0.05
ORDER BY conflict_share DESC, table_name, column_name
