"""A backfill divided among shards: what each reads, what is left to the run after them, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dlt
import psycopg2
import pytest
from dlt.pipeline.pipeline import Pipeline
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError, LockedError
from connector.load.dlt_bridge import load_package
from connector.maintain.verify import verify
from connector.run.shards import divide, sync
from connector.runs import Status, Tally
from connector.sandbox import Request, Service, serve
from connector.scope import shard_of
from connector.settings import RunScope, Selection, Settings
from connector.warehouse.lock import shard_writer, sole_writer
from connector.warehouse.split import SHARED, Split
from tests.types.conftest import DuckDB, PostgreSQL, duck, postgres, postgres_uri

pytestmark = pytest.mark.thorough

__all__ = ["duck", "postgres", "postgres_uri"]

TEMPLATES = ("customers", "orders", "products", "employees")


class Killed(BaseException):
    """What no code of ours survives; the process goes on, for the test to look at."""


@pytest.fixture
def service() -> Service:
    service = Service(seed=5)
    for number, template in enumerate(TEMPLATES):
        service.add_generated(template, imports=2, rows=20 * (number + 1))
    service.add_import(None, [{"untemplated": 1}], metadata={"source": "desk", "rows": 1})
    return service


class Shards:
    """Several pipelines into one dataset, each with a working directory of its own."""

    def __init__(self, postgres: PostgreSQL, url: str, token: str) -> None:
        self.postgres = postgres
        self.settings = Settings.load(base_url=url, access_token=token, batch_rows=30)

    def pipeline(self, name: str) -> Pipeline:
        return dlt.pipeline(
            "importer",
            destination=self.postgres.destination(),
            dataset_name=self.postgres.dataset,
            pipelines_dir=str(self.postgres.folder / name),
        )

    def run(self, number: int, shards: int = 2, **options: Any) -> Tally:
        settings = options.pop("settings", self.settings)
        return sync(self.pipeline(f"shard-{number}"), settings, RunScope(shard=(number, shards)), **options)

    def close(self) -> Tally:
        return sync(self.pipeline("run"), self.settings)

    def differences(self) -> list[str]:
        return [each.sentence for each in verify(self.pipeline("verify"), self.settings, deep=True).differences]

    def leftovers(self) -> tuple[list[str], list[str]]:
        sql = "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE %s"
        schemas = [name for (name,) in self.postgres.tuples(sql, f"{self.postgres.dataset}%shard%")]
        return schemas, self.postgres.tables("sync_shards")


@pytest.fixture
def shards(postgres: PostgreSQL, service: Service) -> Iterator[Shards]:
    with serve(service) as url:
        yield Shards(postgres, url, service.token)


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 1000), min_size=1)), st.integers(2, 8), st.booleans()
)
def test_the_work_is_divided_evenly(sizes: dict[str, list[int]], count: int, intact: bool) -> None:
    by_shard: dict[str, Counter[int]] = {}
    for template, each in sizes.items():
        by_shard[template] = Counter()
        for number, size in enumerate(each):
            by_shard[template][shard_of(f"{template} {number}", count)] += size
    assigned = divide(by_shard, count, sizes if intact else ())
    assert assigned.keys() == sizes.keys()
    assert set(assigned.values()) <= {*range(1, count + 1), *[SHARED] * intact}
    split = Split(count, assigned, {})
    loads = Counter(dict.fromkeys(range(1, count + 1), 0))
    for template, each in sizes.items():
        for number, size in enumerate(each):
            [owner] = [n for n in loads if split.part(n).contains(template, f"{template} {number}")]
            loads[owner] += size
    whole = [sum(each) for template, each in sizes.items() if assigned[template] != SHARED]
    if len(whole) == len(sizes):
        assert max(loads.values()) - min(loads.values()) <= max(whole, default=0)


def test_a_template_too_large_for_one_shard_is_shared_by_all() -> None:
    large, small = Counter({1: 40, 2: 35, 3: 30}), Counter({2: 20})
    assert divide({"a": large, "b": small}, 3, {"a", "b"}) == {"a": SHARED, "b": 3}
    assert divide({"a": large, "b": small}, 3, {"b"}) == {"a": 1, "b": 2}
    assert divide({"a": Counter({1: 90}), "b": small}, 3, {"a", "b"}) == {"a": 1, "b": 2}, "there is nothing to share"


def test_shards_and_the_run_after_them_load_each_import_once(shards: Shards, service: Service) -> None:
    first = shards.run(1)
    assert (first.status, first.mode) == (Status.succeeded, "shard 1/2")
    second = shards.run(2)
    assert first.templates.keys().isdisjoint(second.templates)
    assert first.records_loaded + second.records_loaded == 401
    assert abs(first.records_loaded - second.records_loaded) < 100
    service.requests.clear()
    last = shards.close()
    assert (last.status, last.imports_changed, service.requests["records"]) == (Status.succeeded, 0, 0)
    assert shards.differences() == []
    assert shards.leftovers() == ([], [])
    modes = shards.postgres.tuples("SELECT mode, status FROM sync_runs ORDER BY started_at")
    assert modes == [(mode, "succeeded") for mode in ("split 2", "shard 1/2", "shard 2/2", "incremental")]


def test_shards_know_what_names_left_out_and_leave_the_note_as_it_is(shards: Shards) -> None:
    def settings(name: str) -> Settings:
        return shards.settings.model_copy(update={"exclude_templates": [name]})

    sync(shards.pipeline("run"), settings("orders"))
    noted = shards.postgres.tuples("SELECT DISTINCT left_out_by_name FROM sync_runs")
    for number in (1, 2):
        assert shards.run(number, settings=settings("nothing")).status is Status.succeeded
    assert shards.postgres.tuples("SELECT DISTINCT left_out_by_name FROM sync_runs") == noted
    last = sync(shards.pipeline("run"), settings("nothing"))
    assert (last.status, last.imports_changed) == (Status.succeeded, 0)
    assert shards.differences() == []


@pytest.mark.long
def test_a_backfill_reads_again_what_is_loaded_and_a_shard_that_is_started_again_does_not(
    shards: Shards, service: Service
) -> None:
    shards.close()
    service.requests.clear()
    first = shards.run(1)
    assert first.records_loaded > 0
    again = shards.run(1)
    assert (again.status, again.records_loaded) == (Status.succeeded, 0)
    assert ("backfill",) in shards.postgres.tuples("SELECT DISTINCT due FROM sync_imports")
    last = shards.close()  # the other shard never came
    assert first.records_loaded + last.records_loaded == 401
    assert shards.differences() == []


@pytest.mark.parametrize("package", [2, *[pytest.param(each, marks=pytest.mark.long) for each in (1, 3)]])
def test_a_shard_that_is_killed_goes_on_where_it_was(shards: Shards, service: Service, package: int) -> None:
    loads = []

    def dying(pipeline: Pipeline, *rest: Any) -> str | None:
        loads.append(1)
        if len(loads) == package + 2:  # the tables and the listing come first
            raise Killed
        return load_package(pipeline, *rest)

    with pytest.raises(Killed):
        shards.run(1, load=dying)
    shards.run(2)
    assert shards.run(1).status is Status.succeeded
    assert shards.close().status is Status.succeeded
    assert shards.differences() == []


@pytest.mark.long
def test_a_shard_dies_behind_the_rows_of_a_package(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are there, and the ledger does not know them: the shard that is started again looks at its part."""
    assert shards.run(2).status is Status.succeeded
    with monkeypatch.context() as patched, pytest.raises(Killed):  # noqa: PT012
        patched.setattr("connector.run.session.RunSession.committed", _kill)
        shards.run(1)
    with psycopg2.connect(shards.postgres.uri) as connection, connection.cursor() as cursor:
        part = f"(SELECT template_slug FROM {shards.postgres.dataset}.sync_shards WHERE shard = 1)"
        cursor.execute(f"DELETE FROM {shards.postgres.dataset}.sync_imports WHERE template_slug IN {part}")
    again = shards.run(1)
    assert again.status is Status.succeeded
    assert shards.close().status is Status.succeeded
    assert shards.differences() == []


def _kill(*_: object) -> None:
    raise Killed


@pytest.mark.long
def test_a_division_that_dies_leaves_no_staged_rows_that_no_run_empties(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("connector.run.shards.write_split", dies)
        with pytest.raises(Killed):
            shards.run(1)
    assert shards.close().status is Status.succeeded
    assert shards.leftovers() == ([], [])
    staging = f"{shards.postgres.dataset}_staging"
    assert shards.postgres.tuples(f"SELECT count(*) FROM {staging}.imports") == [(0,)]


@pytest.mark.long
def test_a_division_creates_the_staging_tables_that_somebody_dropped(shards: Shards, service: Service) -> None:
    for number in range(2):
        assert shards.close().status is Status.succeeded
        service.set_metadata(service.slugs()[0], {"changed": number})
    with psycopg2.connect(shards.postgres.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {shards.postgres.dataset}_staging.imports")
    assert shards.run(1).error is None
    assert shards.close().status is Status.succeeded
    assert shards.differences() == []


def test_what_changes_meanwhile_is_left_to_the_run_after_them(shards: Shards, service: Service) -> None:
    first = shards.run(1)
    other = next(i for i in service.imports() if i["template"] and i["template"]["slug"] not in first.templates)
    service.set_metadata(other["slug"], {"brand new": {"a": 1}, "rows": "text now"})
    moved = service.slugs()[0]
    service.set_template(moved, other["template"]["slug"])
    late = service.add_import("suppliers", [{"a": 1}, {"a": "b"}])
    second = shards.run(2)
    assert second.status is Status.succeeded
    last = shards.close()
    assert last.status is Status.succeeded
    assert last.imports_changed >= 3
    assert late in {slug for (slug,) in shards.postgres.tuples("SELECT import_slug FROM records")}
    assert shards.differences() == []


class Large:
    """A template that is most of the work, and a small one beside it."""

    def __init__(self) -> None:
        self.service = Service(seed=6)
        for number in range(16):
            self.add([{"n": n, "text": f"{number}", "rate": n / 4} for n in range(20)])
        self.service.add_import("small", [{"a": 1}])

    def add(self, rows: list[dict[str, Any]]) -> str:
        return self.service.add_import("large", rows)

    @property
    def slug(self) -> str:
        return str(next(i["template"]["slug"] for i in self.service.imports() if i["template"]["name"] == "large"))

    def first_row(self, shard: int) -> tuple[str, str]:
        """The first row of the first import that a shard of two reads."""
        mine = (i["slug"] for i in self.service.imports() if i["template"]["slug"] == self.slug)
        slug = next(each for each in mine if shard_of(each, 2) == shard)
        return slug, next(iter(self.service.records(slug)))["slug"]


@pytest.fixture
def large() -> Large:
    return Large()


@pytest.fixture
def sharing(postgres: PostgreSQL, large: Large) -> Iterator[Shards]:
    with serve(large.service) as url:
        yield Shards(postgres, url, large.service.token)


def fields_of(shards: Shards) -> dict[str, tuple[int, int, int]]:
    sql = "SELECT column_name, value_count, null_count, conflict_count FROM sync_fields"
    rows = shards.postgres.tuples(f"{sql} WHERE table_name = 'records_large' AND data_type IS NOT NULL")
    return {name: (values, nulls, conflicts) for name, values, nulls, conflicts in rows}


def as_counted(shards: Shards) -> dict[str, tuple[int, int, int]]:
    """What `sync_fields` has to say, counted in the table itself."""
    found = {}
    there = shards.postgres.columns("records_large")
    for name in fields_of(shards):
        variants = [f'count("{c}")' for c in (f"{name}__v_text", f"{name}__v_double") if c in there]
        conflicts = " + ".join(variants) or "0"
        sql = f'SELECT count("{name}") + {conflicts} AS v, {conflicts} AS c, count(*) AS n FROM records_large'
        [(values, kept, rows)] = shards.postgres.tuples(sql)
        found[name] = values, rows - values, kept
    return found


@pytest.mark.long
def test_shards_share_a_large_template_by_its_imports(
    sharing: Shards, large: Large, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="connector.run")
    first, second = sharing.run(1), sharing.run(2)
    assert "Template large is 95% of the work; all shards share it." in caplog.text
    assert (first.status, second.status) == (Status.succeeded, Status.succeeded)
    assert first.records_loaded + second.records_loaded == 320 + 1 - 60, "three imports settle the columns before"
    assert first.templates[large.slug] > 60 < second.templates[large.slug]
    last = sharing.close()
    assert (last.status, last.imports_changed) == (Status.succeeded, 0)
    assert sharing.differences() == []
    assert sharing.leftovers() == ([], [])
    assert fields_of(sharing) == as_counted(sharing)


@pytest.mark.long
def test_what_a_shared_table_has_no_column_for_is_left_to_the_run_after_the_shards(
    sharing: Shards, large: Large, caplog: pytest.LogCaptureFixture
) -> None:
    sharing.close()  # settles the columns
    large.add([{"n": "not a number"}])
    sharing.close()  # and n__v_text with them
    columns = sharing.postgres.columns("records_large")
    new = [
        large.add([{"n": 1, "new": 1}, {"n": 2}]),
        large.add([{"n": 1.5}]),
        large.add([{"rate": "text"}]),
        large.add([{"only null": None}]),
    ]
    fits = large.add([{"n": "no number either"}])
    tallies = [sharing.run(1), sharing.run(2)]
    assert [tally.status for tally in tallies] == [Status.succeeded] * 2
    assert sharing.postgres.columns("records_large") == columns
    assert "need columns that the shared tables lack" in caplog.text
    there = {slug for (slug,) in sharing.postgres.tuples("SELECT _import_slug FROM records_large")}
    assert there.isdisjoint(new)
    assert fits in there
    last = sharing.close()
    assert (last.status, last.imports_changed, last.records_loaded) == (Status.succeeded, 4, 5)
    assert {"new", "n__v_double", "rate__v_text"} <= set(sharing.postgres.columns("records_large"))
    assert sharing.differences() == []
    assert fields_of(sharing) == as_counted(sharing)


def test_an_import_that_moves_while_a_shard_reads_it_is_left_to_the_run_after_the_shards(
    shards: Shards, service: Service
) -> None:
    """The table of the other template may be another shard's, and it cannot know that it gets rows."""
    for template in ("customers", "orders"):
        service.add_generated(template, imports=1, rows=150)  # of several pages, so not read at one instant
    moving = service.slugs()[-1]
    customers = next(each for each in service.templates() if each.name == "customers")

    def move(request: Request) -> None:
        if request.path.endswith(f"{moving}/records"):
            service.on_request = None
            service.set_template(moving, customers)

    service.on_request = move
    assert [shards.run(1).status, shards.run(2).status] == [Status.succeeded] * 2
    assert shards.postgres.tuples("SELECT 1 FROM records WHERE import_slug = %s", moving) == []
    assert shards.close().imports_changed == 1
    assert shards.differences() == []


@pytest.mark.long
def test_fields_are_counted_anew_though_rows_are_as_many_as_before(sharing: Shards, large: Large) -> None:
    sharing.close()
    for shard in (1, 2):
        large.service.edit_row(*large.first_row(shard), {"n": None, "text": None})
    sharing.run(1)
    sharing.run(2)
    before = fields_of(sharing)
    only = RunScope(mode="backfill", selection=Selection(template="small"), force=True)
    sync(sharing.pipeline("run"), sharing.settings, only)  # any run ends the division, whatever else it reads
    assert fields_of(sharing) == as_counted(sharing) != before
    assert sharing.close().status is Status.succeeded
    assert sharing.differences() == []


@pytest.mark.long
def test_no_shard_mends_a_shared_table(sharing: Shards) -> None:
    sharing.run(1)
    with psycopg2.connect(sharing.postgres.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {sharing.postgres.dataset}.records_large DROP COLUMN rate")
    refused = sharing.run(2)
    assert "Columns of records_large were changed after the work was divided" in str(refused.fatal)
    assert "rate" not in sharing.postgres.columns("records_large")
    assert sharing.close().status is Status.succeeded
    assert sharing.differences() == []


@pytest.mark.long
@pytest.mark.parametrize("package", [1, 3])
def test_a_shard_that_is_killed_goes_on_in_a_shared_table(sharing: Shards, package: int) -> None:
    sharing.run(2)
    loads = []

    def dying(pipeline: Pipeline, *rest: Any) -> str | None:
        loads.append(1)
        if len(loads) == package:
            raise Killed
        return load_package(pipeline, *rest)

    with pytest.raises(Killed):
        sharing.run(1, load=dying)
    assert sharing.run(1).status is Status.succeeded
    assert sharing.close().status is Status.succeeded
    assert sharing.differences() == []


@pytest.mark.long
def test_a_record_that_two_shards_bring_is_there_once(shards: Shards, service: Service, postgres: PostgreSQL) -> None:
    """Each of two that write at once finds no row of the other; here one is brought back, as if it had come so."""
    shards.run(1)
    shards.run(2)
    with psycopg2.connect(postgres.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {postgres.dataset}")
        cursor.execute("SELECT DISTINCT ON (template_slug) slug, template_slug FROM records ORDER BY 2, 1")
        (one, _), (other, _) = cursor.fetchall()[:2]
        cursor.execute("UPDATE records SET slug = %s WHERE slug = %s", (one, other))
    last = shards.close()
    assert last.records_loaded > 0
    assert shards.differences() == []


@pytest.mark.long
def test_shards_are_refused_where_they_cannot_write_side_by_side(
    shards: Shards, service: Service, duck: DuckDB
) -> None:
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token)
        with pytest.raises(ConfigError, match="a DuckDB file has one writer at a time"):
            sync(duck.pipeline(), settings, RunScope(shard=(1, 2)))
    with pytest.raises(ConfigError, match="With history on"):
        shards.run(1, settings=shards.settings.model_copy(update={"history": True}))
    long = replace_dataset(shards, "d" * 50)
    with pytest.raises(ConfigError, match="shorter name"):
        long.run(1)
    shards.run(1)
    with pytest.raises(ConfigError, match="divided among 2 shards already, so there is no shard 1/3"):
        shards.run(1, 3)
    shards.close()
    assert shards.run(1, 3).status is Status.succeeded


def replace_dataset(shards: Shards, name: str) -> Shards:
    postgres = PostgreSQL(shards.postgres.folder, shards.postgres.uri)
    postgres.dataset = name
    return Shards(postgres, shards.settings.base_url, shards.settings.access_token.get_secret_value())


def test_a_run_and_a_shard_exclude_each_other_and_shards_do_not(shards: Shards) -> None:
    shards.run(1)
    with held(shards, 1):
        assert shards.run(2).status is Status.succeeded
        with pytest.raises(LockedError, match="Another run"):
            shards.close()
        with pytest.raises(LockedError, match="Shard 1/2"):
            shards.run(1)
    with sole_writer(shards.pipeline("other")), pytest.raises(LockedError, match="Another run"):
        shards.run(2)
    assert shards.close().status is Status.succeeded


@contextmanager
def held(shards: Shards, number: int) -> Iterator[None]:
    """The locks of a shard on another machine: its files lie elsewhere."""
    pipeline = shards.pipeline("elsewhere")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("connector.warehouse.lock.lock_path", lambda _: shards.postgres.folder / "elsewhere.lock")
        entered = shard_writer(pipeline, number, 2, lambda _: None)
        entered.__enter__()
    try:
        yield
    finally:
        entered.__exit__(None, None, None)


@pytest.mark.long
def test_each_shard_has_its_part_of_the_rate(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    opened = Settings.model_copy

    def noting(self: Settings, **options: Any) -> Settings:
        asked.append(options["update"]["requests_per_second"])
        return opened(self, **options)

    monkeypatch.setattr(Settings, "model_copy", noting)
    assert shards.run(1).status is Status.succeeded
    object.__setattr__(shards, "settings", replace_rate(shards.settings))
    assert shards.run(2).status is Status.succeeded
    assert asked == [None, 500.0]


def replace_rate(settings: Settings) -> Settings:
    return Settings.load(
        base_url=settings.base_url, access_token=settings.access_token.get_secret_value(), requests_per_second=1000
    )
