"""Reads again what was last updated in a window: `python pipelines/backfill.py 2026-01-01 2026-02-01` (UTC).

The second time is left out of the window, so that windows can stand side by side. Exit codes are those of
`importer-sync backfill`.
"""

import sys
from datetime import datetime
from typing import NoReturn

from connector.cli.scheduled import prepare_environment, scheduled


def main() -> NoReturn:
    try:
        since, until = map(datetime.fromisoformat, sys.argv[1:])
    except ValueError:
        print(f"usage: {sys.argv[0]} SINCE UNTIL, two dates or times in ISO 8601", file=sys.stderr)
        sys.exit(2)
    prepare_environment()
    import dlt

    from connector.settings import Scope, Window

    scope = Scope(mode="backfill", window=Window(since=since, until=until), force=True)
    scheduled(lambda: dlt.pipeline("importer", destination="duckdb", dataset_name="importer_data"), scope)


if __name__ == "__main__":
    main()
