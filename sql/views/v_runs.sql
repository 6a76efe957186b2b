-- Run history: outcome, duration, and rows per second.
-- Grain: one row per run, failed and interrupted ones too.
--
-- is_full: the run listed everything, so that everything is loaded after its success; not if `status` bounded it.
SELECT
    run_id,
    status,
    mode,
    mode = 'incremental' AND window_since IS NULL AND window_until IS NULL AS is_full,
    started_at,
    CAST(started_at AT TIME ZONE 'UTC' AS DATE) AS run_day,
    finished_at,
    epoch(finished_at - started_at) AS duration_s,
    imports_listed,
    imports_changed,
    imports_deleted,
    imports_failed,
    imports_unreconciled,
    records_loaded,
    records_rejected,
    CAST(records_loaded AS DOUBLE) / NULLIF(epoch(finished_at - started_at), 0) AS rows_per_s,
    requests,
    retries,
    bytes_received,
    error_kind,
    error,
    connector_version,
    destination,
    window_since,
    window_until
FROM sync_runs
