"""65 things that people get wrong, and what the command has to say of each: what happened, where, and what to do.

`python -m tests.support.bad_inputs [COMMAND …]` runs them in empty directories and prints a table: good if all three
are said and the exit code is right, half if one of the three is not, wrong for another exit code, a traceback, silence.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

URL, TOKEN = "SOURCES__IMPORTER__BASE_URL", "SOURCES__IMPORTER__ACCESS_TOKEN"
CONFIG, SECRETS = ".dlt/config.toml", ".dlt/secrets.toml"
SELECT = 'SELECT "Country" FROM customers LIMIT 1'


@dataclass(frozen=True)
class Case:
    """A mistake. `what`, `where` and `cure` are looked for in all that is printed; `after` are commands before it."""

    name: str
    arguments: tuple[str, ...]
    what: str
    where: str
    cure: str
    code: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    after: tuple[tuple[str, ...], ...] = ()
    unset: tuple[str, ...] = ()


def setting(name: str, value: str, what: str, cure: str, code: int = 2, command: str = "check") -> Case:
    key = name.split("__")[-1].lower()
    return Case(f"{key} = {value[:24]}", (command,), what, rf"{key}.*{name}|{name}", cure, code, {name: value})


OWN = "SOURCES__IMPORTER__"
RUN = (("run",),)
CASES = (
    # the configuration
    Case("no configuration", ("check",), "missing", r"secrets.toml", OWN + "ACCESS_TOKEN", unset=(URL, TOKEN)),
    Case("no token", ("run",), "access_token is missing", "secrets.toml", TOKEN, unset=(TOKEN,)),
    setting(URL, "127.0.0.1:8080", "must be an http:// or https:// address", "http"),
    setting(URL, "http://service.example", "could read the access token", "use https://"),
    Case("a host that refuses", ("check",), "connection refused", "127.0.0.1:9 .*GET /imports", "wrong host or port", 1,
         {URL: "https://127.0.0.1:9"}),
    Case("a host that is none", ("check",), "does not resolve", "GET /imports", "how it is spelt", 1,
         {URL: "https://nosuch.invalid"}),
    setting(TOKEN, "two words", "one printable word", "without blanks"),
    setting(OWN + "DELETES", "sometimes", "deletes = 'sometimes'", "'mirror' or 'keep'"),
    setting(OWN + "RECONCILE", "maybe", "reconcile = 'maybe'", "'fail', 'warn' or 'off'"),
    setting(OWN + "MAX_CONCURRENCY", "0", "max_concurrency", "greater than or equal to 1"),
    setting(OWN + "MAX_CONCURRENCY", "many", "is 'many'", "whole number"),
    setting(OWN + "MASS_DELETE_LIMIT", "1.5", "mass_delete_limit", "less than or equal to 1"),
    setting(OWN + "STATUS", "complete", "no such status", "did you mean completed"),
    setting(OWN + "MAX_RUN_TIME", "soon", "not a length of time", "15m, 6h"),
    setting("IMPORTER_SYNC__NOTIFY_ON", "never", "notify_on .* 'never'", "takes only some of", command="run"),
    setting("IMPORTER_SYNC__NOTIFY_URL", "hook", "notify_url", "http:// or https:// address", command="run"),
    Case("batch_row in a file", ("check",), "nothing reads it", CONFIG, "did you mean batch_rows",
         files={CONFIG: "[sources.importer]\nbatch_row = 5\n"}),
    Case("tokn in a file", ("check",), "nothing reads it", SECRETS, "did you mean access_token",
         files={SECRETS: '[sources.importer]\naccess_tokn = "x-y-z"\n'}),
    Case("destnation in a file", ("check",), "nothing reads it", CONFIG, "did you mean destination",
         files={CONFIG: '[importer_sync]\ndestnation = "duckdb"\n'}),
    Case("a misspelt variable", ("check",), "nothing reads it", OWN + "DELETE", "did you mean deletes",
         environment={OWN + "DELETE": "keep"}),
    Case("TOML that is none", ("check",), "not valid TOML|TOML", CONFIG, "line 1",
         files={CONFIG: "[sources.importer\nbatch_rows = 5\n"}),
    Case("a hint that is no type", ("check",), "hints.records_customers.no is not valid", CONFIG, "bigint",
         files={CONFIG: '[sources.importer.hints.records_customers]\nno = "integer"\n'}),
    Case("a decimal too wide", ("check",), "is not valid", CONFIG, "38",
         files={CONFIG: '[sources.importer.hints.records_customers]\nno = "decimal(50,2)"\n'}),
    Case("a hint for no table", ("run",), "match no table", "records_customer", "did you mean records_customers", 0,
         files={CONFIG: '[sources.importer.hints.records_customer]\nno = "text"\n'}),
    Case("a hint for no column", ("run",), "matches no column", "records_customers.nombre", "known are|did you mean", 0,
         files={CONFIG: '[sources.importer.hints.records_customers]\nnombre = "text"\n'}),
    Case("raw and typed off", ("run",), "raw and typed are both false", r"sources.importer", "set one of them to true",
         environment={OWN + "RAW": "false", OWN + "TYPED": "false"}),
    # the service
    Case("a wrong token", ("check",), "answered 401", "GET /imports page 1", "check access_token", 1,
         {TOKEN: "wrong-token-1"}),
    Case("TLS to a plain port", ("check",), "answered without TLS", "GET /imports", "begin with http://", 1,
         {URL: "https://{host}"}),
    Case("a path that is wrong", ("check",), "answered 404", "GET /imports", "base_url is wrong", 1, {URL: "{url}/v7"}),
    Case("a dead proxy", ("check",), "the proxy 127.0.0.1:9 of the environment: connection refused", "GET /imports",
         "check HTTPS_PROXY", 1, {URL: "https://service.example", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "",
                                  "no_proxy": ""}),
    Case("a port nobody listens on", ("run",), "connection refused", "GET /imports", "down, try again later", 1,
         {URL: "http://127.0.0.1:9", OWN + "MAX_RUN_TIME": "1h"}),
    # the command line
    Case("a misspelt command", ("rn",), "no command 'rn'", "importer-sync", "did you mean run"),
    Case("a misspelt option", ("run", "--jsn"), "no option --jsn", "usage: importer-sync run", "did you mean --json"),
    Case("a misspelt action", ("sql", "aply"), "no command 'aply'", "usage: importer-sync sql", "did you mean apply"),
    Case("half an option", ("init", "--token", "abc"), "no option --token", "usage: importer-sync init",
         "did you mean --token-stdin"),
    Case("an argument too many", ("run", "now"), "'now'", "usage: importer-sync run", "help run"),
    Case("a format that is none", ("run", "--log-format", "jsno"), "'jsno'", "argument --log-format",
         "did you mean json"),
    Case("days that are none", ("run", "--recheck-days", "0"), "0 is too small", "--recheck-days", "help run"),
    Case("a time that is none", ("backfill", "--since", "some day"), "'some day'", "argument --since", "7d"),
    Case("an age that is none", ("status", "--max-age", "6"), "not a length of time", "--max-age", "6h"),
    Case("a backfill of nothing", ("backfill",), "needs to know what", "--template", "--full for everything"),
    Case("a backfill of all and some", ("backfill", "--full", "--template", "orders"), "--full selects everything",
         "--full", "another selection"),
    Case("a window backwards", ("backfill", "--since", "2026-02-01", "--until", "2026-01-01"), "before --until",
         "--since", "has to be before"),
    Case("a backfill of no template", ("backfill", "--template", "custmers"), "custmers", "template",
         "did you mean customers"),
    Case("a backfill of no import", ("backfill", "--import", "nope"), "nope", "import",
         "does not exist|no import|list", 2),
    Case("a preview of no template", ("preview", "--template", "nosuch"), "nosuch", "first page",
         "known are|did you mean"),
    Case("metadata without a value", ("session", "create", "--importer-slug", "demo", "--metadata", "x"), "'x'",
         "--metadata", "name=value"),
    Case("a fault that is none", ("sandbox", "--fault", "bad_luck=1"), "bad_luck", "--fault", "there are"),
    Case("a switch that is none", ("sandbox", "--switch", "import_order=backwards"), "backwards", "--switch", "random"),
    Case("a file that is not there", ("sandbox", "--file", "none.csv"), "none.csv", "--file", "No such file"),
    Case("a port in use", ("sandbox", "--port", "{port}"), "cannot be served on", r"Port \d+", "--port, or 0"),
    Case("--to and --destination", ("run", "--to", "duckdb:x", "--destination", "duckdb"), "not allowed with",
         "--destination", "--to"),
    # the destination
    Case("a destination that is not supported", ("check", "--destination", "snowflake"), "'snowflake' is not supported",
         "destination", "use duckdb, postgres"),
    Case("a scheme that is none", ("check", "--to", "oracle://x"), "--to oracle:… is not supported", "--to",
         "use duckdb:///"),
    Case("a dataset that dlt would rename", ("run", "--dataset", "my data"), "'my data'", "--dataset", "my_data"),
    Case("a name that dlt refuses", ("run", "--pipeline-name", "a b/c"), "'a b/c' is not a valid name",
         "--pipeline-name", "use letters"),
    Case("PostgreSQL that is not there", ("run", "--to", "postgresql://ana:pass-word-12@127.0.0.1:9/db"),
         "[Cc]onnection refused", "127.0.0.1", "running|reach|try again|check", 1),
    Case("a directory that is a file", ("run", "--to", "duckdb:///{folder}/file/x.duckdb"), "cannot be created", "file",
         "--to", files={"file": "x"}),
    Case("a directory nobody can write", ("run", "--to", "duckdb:////proc/x/w.duckdb"),
         "cannot be created|cannot be written", "/proc", "--to"),
    Case("a file that is no database", ("run", "--to", "duckdb:///{folder}/x.duckdb"), "is not a DuckDB database",
         "x.duckdb", "--to|another|move|name", 1,
         files={"x.duckdb": "not a database, but a text of some length" * 200}),
    Case("no warehouse yet", ("report",), "There is no warehouse", "importer.duckdb", "importer-sync run"),
    Case("verify before a run", ("verify",), "no warehouse to verify", "warehouse", "run `importer-sync run` first", 1),
    # questions
    Case("a query that writes", ("query", "DELETE FROM imports"), "SELECT", "query", "one SELECT|only", after=RUN),
    Case("a column that is none", ("query", "SELECT nosuch FROM v_imports"), "nosuch", "v_imports|imports",
         "Candidate|did you mean|columns", 1, after=RUN),
    Case("a report into a folder that is not there", ("report", "--out", "no/such/r.html"), "no/such",
         "No such file|not there",         "--out|make", 1, after=RUN),
)  # fmt: skip


@dataclass(frozen=True)
class Graded:
    grade: str
    missing: tuple[str, ...]
    said: str


def grade(case: Case, code: int, said: str) -> Graded:
    """Return what the answer is worth: `good`, `half` or `wrong`."""
    flat = " ".join(said.split())
    missing = tuple(
        part for part in ("what", "where", "cure") if not re.search(getattr(case, part), flat, re.IGNORECASE)
    )
    wrong = code != case.code or "Traceback" in said or "An unexpected error" in said or len(missing) > 1
    return Graded(
        "wrong" if wrong else "half" if missing else "good",
        missing,
        flat[-400:] if code == case.code else f"{code}: {flat[-400:]}",
    )


def filled(text: str, url: str, folder: Path) -> str:
    host = url.removeprefix("http://")
    places = {"url": url, "host": host, "port": host.rpartition(":")[2], "folder": str(folder).lstrip("/")}
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def prepare(case: Case, folder: Path) -> None:
    for name, content in case.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def main(command: list[str]) -> int:
    """Run them all with `command`; return 1 if one is wrong, or more than five are half."""
    from connector.sandbox import Service, serve

    service = Service(seed=1, token="token-of-the-table")
    service.add_generated("customers", imports=2, rows=30)
    counts: Counter[str] = Counter()
    with serve(service) as url:
        for number, case in enumerate(CASES, 1):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch, "work")
                folder.mkdir()
                prepare(case, folder)
                given = {URL: url, TOKEN: service.token, **case.environment, "HOME": scratch}
                kept = {k: v for k, v in os.environ.items() if "__" not in k and k != "VIRTUAL_ENV"}
                environment = kept | {k: filled(v, url, folder) for k, v in given.items() if k not in case.unset}
                for arguments in (*case.after, case.arguments):
                    ended = subprocess.run(
                        [*command, *(filled(each, url, folder) for each in arguments)],
                        cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False,
                        stdin=subprocess.DEVNULL,
                    )  # fmt: skip
            found = grade(case, ended.returncode, ended.stdout + ended.stderr)
            counts[found.grade] += 1
            print(
                f"{number:2} {found.grade:5} {case.name}{''.join(f', no {part}' for part in found.missing)}", flush=True
            )
            if found.grade != "good":
                print(f"         {found.said}", flush=True)
    print(", ".join(f"{counts[each]} {each}" for each in ("good", "half", "wrong")))
    return int(bool(counts["wrong"]) or counts["half"] > 5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["importer-sync"]))
