"""One incremental sync, for a scheduler: `python pipelines/sync.py`, with the exit codes of `importer-sync run`.

Settings come from `.dlt/` of the working directory or from the environment, see README. With nothing but dlt the
same is `pipeline.run(importer_source())`; this adds bounded load packages, the lock, the signals and the exit code.
"""

from typing import NoReturn

from connector.cli.scheduled import prepare_environment, scheduled


def main() -> NoReturn:
    prepare_environment()
    import dlt

    scheduled(lambda: dlt.pipeline("importer", destination="duckdb", dataset_name="importer_data"))


if __name__ == "__main__":
    main()
