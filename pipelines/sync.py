"""Run one incremental sync, for a scheduler: `python pipelines/sync.py`, with the exit codes of `importer-sync run`.

Settings come from `.dlt/` in the working directory or from the environment.
"""

from connector import run_and_exit

if __name__ == "__main__":
    run_and_exit("importer", destination="duckdb", dataset_name="importer_data")
