"""Gone means gone: what the service erased is left in no table, and after `compact` in no byte of the file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest
from dlt.common.destination import PreparedTableSchema
from dlt.destinations.sql_jobs import SqlMergeFollowupJob

from connector.errors import ConnectorError, DatabaseBusyError, LockedError
from connector.maintain import compact as compacting
from connector.maintain.compact import compact
from connector.runs import Status
from connector.sandbox import Request, Response, Service
from connector.warehouse import Warehouse as DatasetOf
from connector.warehouse.erasing import erase_kept
from connector.warehouse.lock import sole_rewriter
from connector.warehouse.ownership import inspect_dataset
from tests.types.conftest import DuckDB, SQLite, Warehouse
from tests.types.test_ours import check_whole, execute

pytestmark = pytest.mark.thorough

CANARY = "erase-me-17@example.com"
OPEN = "import duckdb, sys, time; c = duckdb.connect(sys.argv[1]); print('open', flush=True); time.sleep(60)"


@pytest.fixture
def service() -> Service:
    """Two imports of one template; the first has the canary in its metadata, in a row and in a row that is rejected."""
    service = Service(1)
    doomed = service.add_import(
        "Customers", [{"a": 1, "mail": CANARY}, {"a": 2, "mail": "x"}], {"uploaded_by": CANARY, "n": 1}
    )
    service.add_raw_record(doomed, f'{{"slug": 7, "data": {{"mail": "{CANARY}"}}}}')
    service.add_import("Customers", [{"a": n, "mail": f"m{n}"} for n in range(50)], {"uploaded_by": "ann"})
    return service


def erase(warehouse: Warehouse, service: Service, **settings: Any) -> None:
    """Load the import twice, so that its rows were staged as well, and delete it."""
    doomed = service.slugs()[0]
    assert warehouse.run(service, **settings).status is Status.partial
    service.set_metadata(doomed, {"uploaded_by": CANARY, "n": 2})
    warehouse.run(service, **settings)
    service.delete_import(doomed)
    assert warehouse.run(service, **settings).status is Status.succeeded


def texts(warehouse: Warehouse) -> str:
    """All rows of all tables of the dataset, and of those in which they were staged."""
    sql = (
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
        f"AND table_schema IN ('{warehouse.dataset}', '{warehouse.dataset}_staging')"
    )
    return str([warehouse.tuples(f'SELECT * FROM {schema}."{table}"') for schema, table in warehouse.tuples(sql)])


@pytest.mark.dialect
def test_nothing_is_left_of_an_import_that_the_service_erased(warehouse: Warehouse, service: Service) -> None:
    erase(warehouse, service)

    assert CANARY not in texts(warehouse)
    kept = warehouse.rows("SELECT * FROM imports WHERE _deleted_at IS NOT NULL")
    assert [(row["template__name"], row["metadata"], row["metadata__uploaded_by"]) for row in kept] == [
        ("Customers", None, None)
    ]
    check_whole(warehouse, service)
    service.restore_import(kept[0]["slug"])
    warehouse.run(service)
    assert CANARY in texts(warehouse)


class Unreadable(Service):
    """The entry of an import in the listing has no `row_count`, if it is the `spoilt` one."""

    spoilt = ""

    def handle(self, request: Request) -> Response:
        reply = super().handle(request)
        if not request.path.endswith("/imports") or reply.status != 200:
            return reply
        listed = json.loads(reply.body)
        for each in listed["data"]:
            if each["slug"] == self.spoilt:
                each["row_count"] = None
        return replace(reply, body=json.dumps(listed).encode())


@pytest.mark.dialect
@pytest.mark.parametrize("changes", [False, True])
def test_nothing_is_left_of_an_import_that_could_never_be_read(warehouse: Warehouse, changes: bool) -> None:
    service = Unreadable(1)
    other = service.add_import("Customers", [{"a": 1}])
    service.spoilt = service.add_import("Customers", [{"a": 2}], {"uploaded_by": CANARY})
    for _ in range(2):
        assert warehouse.run(service).status is Status.partial
    service.delete_import(service.spoilt)
    warehouse.run(service, status="completed")
    assert CANARY in texts(warehouse), "imports of another status were not listed"
    if changes:
        service.append_rows(other, [{"a": 3}])
    assert warehouse.run(service).status is Status.succeeded
    assert CANARY not in texts(warehouse)


def test_what_a_run_left_that_died_is_erased_by_the_next(duck: DuckDB, service: Service) -> None:
    duck.run(service)
    service.delete_import(service.slugs()[0])
    rejects = duck.rows("SELECT * FROM sync_rejects")
    duck.run(service)
    names, row = ", ".join(rejects[0]), ", ".join("NULL" if v is None else f"'{v}'" for v in rejects[0].values())
    execute(
        duck,
        f"INSERT INTO sync_rejects ({names}) VALUES ({row})",
        f"UPDATE imports SET metadata__uploaded_by = '{CANARY}' WHERE _deleted_at IS NOT NULL",
        "UPDATE sync_runs SET status = 'running'",
    )
    assert CANARY in texts(duck)

    assert duck.run(service).status is Status.succeeded
    assert CANARY not in texts(duck)


def test_deletes_that_are_kept_keep_all(duck: DuckDB, service: Service) -> None:
    erase(duck, service, deletes="keep")
    compact(duck.pipeline(), mirrors=False)
    kept = duck.tuples("SELECT metadata__uploaded_by FROM imports WHERE _deleted_at IS NOT NULL")
    assert kept == [(CANARY,)]
    assert len(duck.rows("SELECT * FROM sync_rejects")) > 0


def test_what_was_kept_is_erased_though_dlts_schemas_are_gone(duck: DuckDB, service: Service) -> None:
    erase(duck, service, deletes="keep")
    execute(duck, "DROP TABLE _dlt_version")
    duck.run(service)
    compact(duck.pipeline(), mirrors=True)
    duck.run(service)
    assert CANARY not in texts(duck)


@pytest.mark.parametrize("deletes", ["keep", pytest.param("mirror", marks=pytest.mark.long)])
def test_rows_that_a_run_without_rules_staged_before_it_died_are_removed(duck: DuckDB, deletes: str) -> None:
    service = Service(1)
    service.add_import("Customers", [{"mail": CANARY}], {"uploaded_by": CANARY})
    rules: dict[str, Any] = {
        "privacy": {"*": {"mail": "drop"}, "metadata": {"uploaded_by": "drop"}},
        "deletes": deletes,
    }
    duck.run(service, **rules)
    merge = SqlMergeFollowupJob.generate_sql

    def die(chain: Sequence[PreparedTableSchema], *rest: Any) -> list[str]:
        """Die once the records are staged: a merge of another table may be due before that."""
        if chain[0]["name"] == "records":
            raise RuntimeError("killed")
        return merge(chain, *rest)

    with mock.patch.object(SqlMergeFollowupJob, "generate_sql", side_effect=die):
        assert duck.run(service, deletes=deletes).status is Status.failed
    assert CANARY in str(duck.tuples(f"SELECT * FROM {duck.dataset}_staging.records"))
    assert duck.run(service, **rules).status is Status.succeeded
    assert CANARY not in texts(duck)


@pytest.mark.parametrize("died", [True, False], ids=["the run died", "only the mark is lost"])
def test_metadata_that_is_not_known_to_be_under_the_rules_is_read_again_once(duck: DuckDB, died: bool) -> None:
    """A run without rules may die between the merges of `imports` and of the ledger, which tells the rules of now."""
    service = Service(1)
    service.add_import("Customers", [{"n": 1}], {"uploaded_by": CANARY})
    rules: dict[str, Any] = {"privacy": {"metadata": {"uploaded_by": "drop"}}}
    duck.run(service, **rules)
    stored = f"""records_metadata = '{{"uploaded_by": "{CANARY}"}}', _ruled_by = NULL, _dlt_load_id = 'died'"""
    execute(duck, f"UPDATE imports SET {stored if died else '_ruled_by = NULL'}")
    assert duck.run(service, **rules).status is Status.succeeded
    assert CANARY not in texts(duck)
    assert duck.run(service, **rules).imports_changed == 0


def test_a_run_removes_the_copy_of_a_killed_compaction(duck: DuckDB, service: Service) -> None:
    """It is readable, and has what a privacy rule or a deletion removes from the file."""
    duck.run(service)
    copy = duck.file.with_name(".warehouse.duckdb.compact")
    copy.write_text("of one that was killed")
    with sole_rewriter(duck.file):
        duck.run(service)
    assert copy.exists(), "a compaction for another dataset is under way"
    duck.run(service)
    assert not list(duck.folder.glob("*.compact*"))


SPILL = """if True:
    import duckdb, os, signal, sys
    connection = duckdb.connect(sys.argv[1])
    connection.execute("SET memory_limit = '60MB'; SET threads = 1")
    text = "'{canary}' || repeat(md5(CAST(n AS VARCHAR)), 20)"
    connection.execute(f"CREATE TEMP TABLE t AS SELECT {text} AS text FROM range(150000) AS r(n)")
    print(connection.execute("SELECT count(*) FROM duckdb_temporary_files()").fetchall(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
""".replace("{canary}", CANARY)


@pytest.mark.parametrize("next_is", ["run", "compact"])
def test_the_rows_that_a_killed_process_spilled_to_disk_are_removed(
    duck: DuckDB, service: Service, next_is: str
) -> None:
    duck.run(service)
    subprocess.run([sys.executable, "-c", SPILL, str(duck.file)], check=False)
    folder = duck.file.with_name(f"{duck.file.name}.tmp")
    assert any(CANARY.encode() in each.read_bytes() for each in folder.iterdir())
    if next_is == "run":
        duck.run(service)
    else:
        compact(duck.pipeline(), mirrors=True)
    assert [each for each in folder.glob("*") if each.stat().st_size] == []


@pytest.mark.long
def test_rows_that_another_connection_of_the_process_spilled_to_disk_stay(duck: DuckDB, service: Service) -> None:
    duck.run(service)
    with duckdb.connect(str(duck.file)) as beside:
        beside.execute("SET memory_limit = '60MB'; SET threads = 1")
        text = "repeat(md5(CAST(n AS VARCHAR)), 20)"
        beside.execute(f"CREATE TEMP TABLE t AS SELECT {text} AS text FROM range(150000) AS r(n)")
        assert duck.run(service).fatal is None
        assert list(duck.file.with_name(f"{duck.file.name}.tmp").glob("*.tmp"))
        assert beside.execute("SELECT sum(length(text)) FROM t").fetchall() == [(150000 * 20 * 32,)]


@pytest.mark.dialect
def test_compacted_warehouses_are_equal_and_hold_no_deleted_bytes(warehouse: Warehouse, service: Service) -> None:
    erase(warehouse, service)
    execute(
        warehouse,
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, note VARCHAR(9) NOT NULL)",
        "INSERT INTO notes VALUES (1, 'mine')",
        "CREATE VIEW seen AS SELECT count(*) AS n FROM records_customers",
        "CREATE SEQUENCE numbers START 5",
    )
    if isinstance(warehouse, DuckDB):
        assert CANARY.encode() in warehouse.file.read_bytes()
        warehouse.file.chmod(0o640)
        warehouse.file.with_name(".warehouse.duckdb.compact").write_text("of one that was killed")

    done = compact(warehouse.pipeline(), mirrors=True)

    assert warehouse.tuples("SELECT note, n FROM notes, seen") == [("mine", 50)]
    assert done.bytes_after > 0
    if isinstance(warehouse, DuckDB):
        assert CANARY.encode() not in warehouse.file.read_bytes()
        assert warehouse.file.stat().st_mode & 0o777 == 0o640
        assert done.bytes_after == warehouse.file.stat().st_size
        assert not list(warehouse.folder.glob("*.compact*"))
        assert warehouse.tuples("SELECT start_value FROM duckdb_sequences()") == [(5,)]
    check_whole(warehouse, service)


@pytest.mark.dialect
def test_compact_removes_what_was_kept_before_deletes_were_mirrored(warehouse: Warehouse, service: Service) -> None:
    """Also of an import that is deleted, and in the table of a template that an import had before."""
    service.add_import("People", [{"a": 3}])
    moved = service.add_import("Customers", [{"a": 1, "mail": f"moved {CANARY}"}, {"a": 2, "mail": "x"}])
    erase(warehouse, service, deletes="keep", history=True)
    service.set_template(moved, "People")
    service.delete_row(moved, next(iter(service.record_slugs(moved))))
    warehouse.run(service, deletes="keep", history=True)
    service.set_metadata(moved, {"n": 1})
    assert warehouse.run(service, history=True).status is Status.succeeded
    marked = "SELECT mail FROM records_customers WHERE _deleted_at IS NOT NULL ORDER BY 1"
    assert warehouse.tuples(marked) == [(CANARY,), (f"moved {CANARY}",), ("x",)]

    compact(warehouse.pipeline(), mirrors=True)

    assert warehouse.tuples(marked) == []
    assert warehouse.run(service, history=True).status is Status.succeeded
    assert CANARY not in texts(warehouse)
    check_whole(warehouse, service)


@pytest.mark.long
def test_the_run_after_compact_erases_versions_of_what_was_kept_though_history_is_off(
    warehouse: Warehouse, service: Service
) -> None:
    erase(warehouse, service, deletes="keep", history=True)
    warehouse.run(service, history=False)
    compact(warehouse.pipeline(), mirrors=True)
    assert CANARY in texts(warehouse)
    ran = warehouse.run(service, history=False)
    assert ran.status is Status.succeeded
    assert not ran.load_ids
    assert CANARY not in texts(warehouse)


@pytest.mark.long
def test_compact_removes_what_was_kept_in_more_tables_than_a_statement_of_sqlite_has(
    tmp_path: Path, service: Service
) -> None:
    warehouse = SQLite(tmp_path)
    erase(warehouse, service, deletes="keep", history=True)
    copies = [f"records_copy_{n}" for n in range(501)]
    execute(warehouse, *(f"CREATE TABLE {copy} AS SELECT * FROM records_customers" for copy in copies))
    with DatasetOf(warehouse.pipeline()).connect() as connection:
        dataset = inspect_dataset(connection)
        erase_kept(connection, replace(dataset, ours=dataset.ours | set(copies)))
    assert warehouse.tuples("SELECT count(*) FROM records_copy_500") == [(50,)]
    assert warehouse.run(service, history=True).status is Status.succeeded
    assert warehouse.tuples("SELECT count(*) FROM records_customers_history") == [(50,)]


@pytest.mark.long
def test_compact_reaches_versions_of_a_row_that_was_removed_before_its_deletion_was_kept(
    duck: DuckDB, service: Service
) -> None:
    """A run with `mirror` that died before it recorded versions leaves the deletion to one with `keep`."""
    duck.run(service, history=True)
    service.delete_row(service.slugs()[0], next(iter(service.record_slugs(service.slugs()[0]))))
    with mock.patch("connector.run.sync.make_versions"):
        duck.run(service, history=True)
    duck.run(service, history=True, deletes="keep")
    compact(duck.pipeline(), mirrors=True)
    duck.run(service, history=True)
    assert duck.tuples(f"SELECT _change FROM records_customers_history WHERE mail = '{CANARY}'") == []


def test_a_file_stays_as_it_was_where_its_copy_is_not_equal_or_another_program_has_it_open(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = DuckDB(tmp_path)
    service.add_import("Lists", [{"t": ["a column, and no alias"], "n": 1}])
    warehouse.run(service)
    before = warehouse.file.stat().st_ino
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, str(warehouse.file)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(DatabaseBusyError, match=r"has .* open"):
            compact(warehouse.pipeline(), mirrors=True)
        other.kill()

    def lossy(session: duckdb.DuckDBPyConnection, table: str) -> Any:
        if table.startswith("importer_new"):
            session.execute(f"DELETE FROM importer_new.{warehouse.dataset}.records_customers WHERE a = 1")
            session.execute(f"UPDATE importer_new.{warehouse.dataset}.records_lists SET n = 2")
        return content(session, table)

    content = compacting._content
    monkeypatch.setattr(compacting, "_content", lossy)
    with pytest.raises(ConnectorError, match=r"in the rows of .*records_customers, the rows of .*records_lists, so"):
        compact(warehouse.pipeline(), mirrors=True)
    assert warehouse.file.stat().st_ino == before
    assert not list(tmp_path.glob("*.compact*"))
    assert warehouse.run(service).fatal is None


@pytest.mark.long
def test_a_file_of_several_datasets_is_rewritten_for_one_at_a_time(tmp_path: Path, service: Service) -> None:
    """The second would put its older copy in place of what runs wrote once the first was done."""
    warehouse = DuckDB(tmp_path)
    warehouse.run(service)
    with sole_rewriter(warehouse.file), pytest.raises(LockedError, match="to rewrite the file"):
        compact(warehouse.pipeline(), mirrors=False)
    assert compact(warehouse.pipeline(), mirrors=False).bytes_after
