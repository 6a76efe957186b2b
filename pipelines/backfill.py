"""Read and load a window of time again: `python pipelines/backfill.py 2026-01-01 2026-02-01` (UTC).

The second time is exclusive, so that windows can be adjacent. Exit codes are those of `importer-sync backfill`.
"""

import sys
from datetime import datetime
from typing import NoReturn

from connector import Scope, Window, run_and_exit


def main() -> NoReturn:
    try:
        since, until = map(datetime.fromisoformat, sys.argv[1:])
    except ValueError:
        print(f"usage: {sys.argv[0]} SINCE UNTIL, two dates or times in ISO 8601", file=sys.stderr)
        sys.exit(2)
    scope = Scope(window=Window(since=since, until=until))
    run_and_exit("importer", destination="duckdb", dataset_name="importer_data", scope=scope)


if __name__ == "__main__":
    main()
