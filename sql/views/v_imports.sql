-- Imports with their uploader, and whether all their rows are loaded.
-- Grain: one row per import that the service still lists and that the settings do not leave out.
--
-- The interface does not define the key of `metadata` for the uploader, so the usual ones are tried in turn;
-- `metadata` itself is the last column. JSON with an escaped NUL or half a character, or with so many brackets that it
-- may be nested too deeply, is not searched, because not every database can read it.
-- row_count, status: of the version that was read, if the import changed between being listed and being read.
-- state: of sync_imports; unread if the import is not there, waiting if the listed version is not loaded yet.
-- rows_failed: the number of rows that are missing in the warehouse or of rejected rows, whichever is larger.
WITH read AS (
    SELECT
        *,
        CASE
            WHEN length(regexp_replace(metadata, '[^[{]', '', 'g')) < 1000 AND NOT regexp_matches(
                regexp_replace(
                    metadata, '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g'
                ),
                '\\u(0000|[dD][89a-fA-F])'
            ) THEN TRY_CAST(metadata AS JSON)
        END AS document
    FROM imports
    WHERE _deleted_at IS NULL
), joined AS (
    SELECT
        i.slug AS import_slug,
        i.template__name AS template,
        i.template__slug AS template_slug,
        COALESCE(
            NULLIF(i.document ->> '$.uploader.email', ''),
            NULLIF(i.document ->> '$.uploader.name', ''),
            NULLIF(i.document ->> '$.uploader', ''),
            NULLIF(i.document ->> '$.uploaded_by.email', ''),
            NULLIF(i.document ->> '$.uploaded_by', ''),
            NULLIF(i.document ->> '$.uploadedBy', ''),
            NULLIF(i.document ->> '$.user.email', ''),
            NULLIF(i.document ->> '$.user.name', ''),
            NULLIF(i.document ->> '$.user.id', ''),
            NULLIF(i.document ->> '$.user', ''),
            NULLIF(i.document ->> '$.user_email', ''),
            NULLIF(i.document ->> '$.userEmail', ''),
            NULLIF(i.document ->> '$.email', ''),
            NULLIF(i.document ->> '$.user_name', ''),
            NULLIF(i.document ->> '$.username', ''),
            NULLIF(i.document ->> '$.user_id', ''),
            NULLIF(i.document ->> '$.userId', ''),
            NULLIF(i.document ->> '$.created_by', ''),
            NULLIF(i.document ->> '$.createdBy', ''),
            NULLIF(i.document ->> '$.owner', ''),
            NULLIF(i.document ->> '$.author', '')
        ) AS uploader,
        COALESCE(
            NULLIF(i.document ->> '$.file_name', ''),
            NULLIF(i.document ->> '$.filename', ''),
            NULLIF(i.document ->> '$.fileName', ''),
            NULLIF(i.document ->> '$.file', '')
        ) AS file_name,
        i.created_at AS uploaded_at,
        CAST(i.created_at AT TIME ZONE 'UTC' AS DATE) AS upload_day,
        i.updated_at AS changed_at,
        CASE WHEN s.state IN ('synced', 'unreconciled') AND s.updated_at > i.updated_at THEN s.status ELSE i.status END
            AS status,
        CASE
            WHEN s.state = 'synced' AND i.updated_at > s.updated_at AND COALESCE(s.due, '') <> 'vanished' THEN 'waiting'
            ELSE COALESCE(s.state, 'unread')
        END AS state,
        CASE
            WHEN s.state IN ('synced', 'unreconciled') AND s.updated_at > i.updated_at THEN s.row_count ELSE i.row_count
        END AS row_count,
        COALESCE(s.records_loaded, 0) AS rows_loaded,
        COALESCE(s.records_rejected, 0) AS rows_rejected,
        COALESCE(s.attempts, 0) AS attempts,
        s.error,
        s.last_synced_at,
        s.table_name,
        i.metadata
    FROM read AS i
    LEFT JOIN sync_imports AS s ON s.slug = i.slug
    WHERE s.state IS NULL OR s.state <> 'excluded'
)
SELECT
    import_slug,
    template,
    template_slug,
    uploader,
    file_name,
    uploaded_at,
    upload_day,
    changed_at,
    status,
    state,
    COALESCE(status = 'completed' AND state = 'synced' AND rows_loaded = row_count, FALSE) AS is_complete,
    row_count,
    rows_loaded,
    rows_rejected,
    GREATEST(COALESCE(row_count, 0) - rows_loaded, rows_rejected, 0) AS rows_failed,
    CASE
        WHEN row_count = 0 THEN 1.0
        ELSE LEAST(CAST(rows_loaded AS DOUBLE) / row_count, 1.0)
    END AS completeness,
    attempts,
    error,
    last_synced_at,
    table_name,
    metadata
FROM joined
