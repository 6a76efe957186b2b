"""Every other command, its help, and the examples in it."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import jwt
import pytest

from connector.cli import main
from connector.cli.commands import session
from connector.errors import ConnectorError
from connector.sandbox import Faults, Service, Switches, session_claims
from connector.sandbox.messages import Request, Response


def subcommands() -> dict[str, argparse.ArgumentParser]:
    [found] = [a for a in main.make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


def test_help_is_instant() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--help']; from connector.cli.main import invoke\ntry: invoke(sys.argv[1:])\n"
    )
    program += (
        "finally: print(sorted({'dlt', 'duckdb', 'pyarrow', 'rich', 'httpx', 'pydantic', 'uvicorn'} & {*sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"
    assert "exit codes" in ended.stdout


def test_every_command_of_the_contract_is_there() -> None:
    contract = {"demo", "run", "backfill", "check", "preview", "status", "verify", "session", "sandbox"}
    assert set(subcommands()) >= contract


@pytest.mark.parametrize("arguments", [["--help"], ["session", "create", "--help"], ["--version"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.invoke(arguments)
    assert end.value.code == 0
    assert "importer-sync" in capsys.readouterr().out


def test_check_when_all_is_well(command) -> None:
    ended = command("check", "--json")
    assert (ended.code, ended.document["ok"]) == (0, True)
    assert ended.document["service"]["order"] == "created_at ascending"
    assert ended.document["service"]["templates"] == ["customers", "orders"]
    assert not (command.directory / "importer.duckdb").exists()


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_command_that_only_looks_leaves_no_folder_behind(command, kind: str) -> None:
    before = set(command.directory.iterdir())
    for looking in (["doctor"], ["check"], ["status"], ["templates"], ["plan"]):
        assert command(*looking, "--to", f"{kind}:new/folder/warehouse").code == 0, looking
        assert {path.name for path in set(command.directory.iterdir()) - before} <= {"dlt"}, looking


def test_check_learns_of_the_service(command, service: Service) -> None:
    service.switches = replace(service.switches, default_per_page=3, import_order="updated_desc")
    learned = command("check", "--json").document["service"]
    assert (learned["default_page_size"], learned["order"]) == (3, "created_at descending")


@pytest.mark.parametrize("beyond", [200, 404])
def test_commands_that_load_nothing_find_page_0(command, service: Service, beyond: Any) -> None:
    service.switches = replace(service.switches, page_zero="counts", past_the_end=beyond)
    learned = command("check", "--json").document["service"]
    assert (learned["imports"], learned["page_of_records"]["rows"]) == (4, 100)
    shown = command("preview", "--json").document
    assert (len(shown["imports"]), len(shown["templates"])) == (4, 2)
    assert command("plan", "--json").document["imports_new"] == 4


def test_check_says_what_is_wrong(command) -> None:
    blocked = command.directory / "blocked.duckdb"
    blocked.mkdir()
    ended = command("check", "--to", f"duckdb:{blocked}", SOURCES__IMPORTER__ACCESS_TOKEN="wrong")
    assert ended.code == 1
    assert ended.out.count("FAILED") == 2
    assert "check access_token" in ended.out


def test_preview_loads_nothing(command) -> None:
    ended = command("preview", "--json", "--rows", "2")
    assert ended.code == 0
    assert len(ended.document["imports"]) == 4
    customers, _orders = ended.document["templates"]
    fields = {field["path"]: field for field in customers["fields"]}
    assert fields["Nº"]["type"] == "bigint"
    assert fields["Nº"]["samples"] == [1, 2]
    assert len(customers["rows"]) == 2
    ended = command("preview", "--template", "orders")
    assert re.search(r"paid +paid +bool .*(true|false)", ended.out)
    assert "True" not in ended.out
    assert "Order ID" in ended.out
    assert "signup date" not in ended.out
    assert not list(command.directory.glob("*.duckdb"))
    left_out = command("preview", "--json", SOURCES__IMPORTER__EXCLUDE_TEMPLATES='["customers"]').document
    assert [each["name"] for each in left_out["templates"]] == ["orders"]
    assert {each["template"] for each in left_out["imports"]} == {"orders"}


@pytest.mark.parametrize("status", [pytest.param(500, marks=pytest.mark.thorough), 413])
def test_commands_ask_for_shorter_pages_where_a_run_does(command, service, status: int) -> None:
    answer = service._answer

    def limited(endpoint: str, slug: str | None, request: Request) -> Response:
        too_long = int(request.query.get("per_page", "1")) > 30
        return Response(status, {}, b"{}") if too_long else answer(endpoint, slug, request)

    with mock.patch.object(service, "_answer", limited):
        for words in ("check", "preview", "plan", "run", "verify --deep"):
            ended = command(*words.split())
            assert ended.code == 0, (words, ended.err)
        service.switches = replace(service.switches, page_zero="counts")
        assert command("check", "--json").document["service"]["imports"] == 4


def test_preview_shows_nothing_of_a_template_that_a_run_does_not_read_under_its_new_name(command, service) -> None:
    rules = {"SOURCES__IMPORTER__PRIVACY": '{"customers": {"City": "drop"}}'}
    left = {"SOURCES__IMPORTER__EXCLUDE_TEMPLATES": '["customers"]'}
    [slug] = [each.slug for each in service.templates() if each.name == "customers"]
    for settings in (rules, left):
        assert command("run", **settings).code == 0
        service.rename_template(slug, "Partner AG")
        ended = command("preview", "--json", **settings)
        assert [each["name"] for each in ended.document["templates"]] == ["orders"]
        assert f"A run does not read template {slug}" in ended.err
        service.rename_template(slug, "customers")


def test_plan_and_templates_before_and_after_a_run(command) -> None:
    planned = command("plan", "--json").document
    assert (planned["imports_listed"], planned["imports_new"], planned["records"]) == (4, 4, 360)
    assert command("templates", "--json").document == {"templates": []}
    assert not list(command.directory.glob("*.duckdb"))
    assert command("run").code == 0
    assert "Everything listed is loaded in its current version." in command("plan").out
    found = command("templates", "--json").document["templates"]
    assert [(each["name"], each["table"], each["imports"]) for each in found] == [
        ("customers", "records_customers", 2),
        ("orders", "records_orders", 2),
    ]


@pytest.mark.thorough
def test_hints_are_suggested_pasted_and_applied(command, service: Service) -> None:
    assert command("hints", "suggest").code == 2, "there is no warehouse yet"
    rows = [{"Betrag": f"{n}.250,50 €", "on": f"{n}.12.2026", "zip": f"{n:05}", "ok": "ja"} for n in range(1, 21)]
    service.add_import("bills", [*rows, {"Betrag": "offen", "ok": "nein"}])
    assert command("run").code == 0
    away = {"SOURCES__IMPORTER__BASE_URL": "http://127.0.0.1:9"}
    found = [
        s
        for s in command("hints", "suggest", "--json", **away).document["suggestions"]
        if s["table"] == "records_bills"
    ]
    assert found == [
        {"table": "records_bills", "column": "betrag", "hint": "decimal(12,2):1.234,56 €", "share": 20 / 21},
        {"table": "records_bills", "column": "ok", "hint": "bool:ja/nein", "share": 1},
        {"table": "records_bills", "column": "on", "hint": "date:%d.%m.%Y", "share": 1},
    ]
    told = command("hints", "suggest", **away)
    assert "`importer-sync rebuild` then applies them" in told.out
    assert "# fits 95.2 % of 21 values" in told.out
    (command.directory / ".dlt").mkdir(exist_ok=True)
    (command.directory / ".dlt" / "config.toml").write_text(told.out, encoding="utf-8")
    rebuilt = command("rebuild")
    assert (rebuilt.code, rebuilt.err) == (0, "")
    average = command("query", 'SELECT avg("Betrag") AS a, count("Betrag__misfit") AS n, max("on") AS day FROM bills')
    assert "2026-12-20" in average.out
    assert command("query", "SELECT field, value FROM v_misfits WHERE template = 'bills'", "--json").document[
        "rows"
    ] == [{"field": "Betrag", "value": "offen"}]
    assert "records_bills" not in command("hints", "suggest").out


def test_status_before_anything_was_loaded(command) -> None:
    ended = command("status", "--json")
    assert (ended.code, ended.document["runs"]) == (0, [])
    assert command("status", "--max-age", "6h").code == 3
    assert not list(command.directory.glob("*.duckdb"))


def test_session_create_prints_the_token_alone(command, service: Service) -> None:
    ended = command("session", "create", "--importer-slug", "demo", "--metadata", "user=ana", "n=1=2")
    claims = session_claims(service.session_key, ended.out.strip())
    assert (ended.code, ended.err) == (0, "")
    assert (claims["importer_slug"], claims["metadata"]) == ("demo", {"user": "ana", "n": "1=2"})
    ended = command("session", "create", "--importer-slug", "demo", "--json")
    assert set(ended.document) == {"token"}
    assert jwt.get_unverified_header(ended.document["token"])["typ"] == "JWT"
    ended = command("session", "create", "--importer-slug", "nobody")
    assert (ended.code, ended.out) == (1, "")
    assert "404" in ended.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_sandbox_serves_until_it_is_stopped(command, number: int, code: int) -> None:
    table = command.directory / "fruit.csv"
    table.write_text("name,colour\napple,red\nplum,blue\n")
    process = command.start(
        "sandbox", "--port", "0", "--imports", "4", "--rows", "5", "--file", str(table), "--rows-per-import", "1",
        "--switch", "default_per_page=3", "--switch", "metadata=absent", "--fault", "latency=0.001", "--json",
    )  # fmt: skip
    told = json.loads(process.stdout.readline())
    assert (told["imports"], told["rows"]) == (6, 22)
    request = urllib.request.Request(
        f"{told['base_url']}/api/v1/imports", headers={"Authorization": f"Bearer {told['access_token']}"}
    )
    with urllib.request.urlopen(request) as reply:
        page = json.load(reply)["data"]
    assert len(page) == 3
    assert "metadata" not in page[0]
    process.send_signal(number)
    assert command.end(process).code == code


@pytest.mark.thorough
def test_the_demo(command) -> None:
    ended = command("demo", "--json")
    shown = ended.document
    assert (ended.code, shown["status"], shown["equal"]) == (0, "succeeded", True)
    assert [run["imports_changed"] for run in shown["runs"]] == [14, 4, 0]
    assert shown["requests"][2]["records"] == 0
    assert all(query["rows"] for query in shown["queries"])
    assert len(shown["queries"]) == 3
    for query in shown["queries"]:
        asked = command("query", "--to", "duckdb:importer_demo.duckdb", query["sql"], "--json")
        assert (asked.code, len(asked.document["rows"])) == (0, query["rows"])
    assert command("report", "--to", "duckdb:importer_demo.duckdb").code == 0
    assert {"records_planets", "records_mountains"} <= set(shown["tables"])
    assert not (command.directory / "dlt").exists()
    again = command("demo", "--file", str(_own_file(command.directory)))
    assert again.code == 0
    assert "records_fruit" in again.out
    assert "records_planets" not in again.out
    assert "exactly those that changed" in again.out
    assert "equal: 13 imports" in again.out


def _own_file(directory: Path) -> Path:
    path = directory / "fruit.jsonl"
    path.write_text('{"name": "apple", "weight": 1.50}\n{"name": "plum", "weight": 100000000000000000001}\n')
    return path


class TestProblems:
    @pytest.fixture(autouse=True)
    def _surroundings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(main, "prepare_environment", lambda **_: None)

    def invoke(self, monkeypatch: pytest.MonkeyPatch, error: BaseException, *flags: str) -> int:
        def fail(*_: object) -> int:
            raise error

        monkeypatch.setattr(session, "run", fail)
        return main.invoke(["session", "create", "--importer-slug", "demo", *flags])

    def test_what_nobody_foresaw_is_one_sentence(self, monkeypatch, capsys) -> None:
        assert self.invoke(monkeypatch, ZeroDivisionError("by\nzero")) == 1
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert "-v" in err
        assert self.invoke(monkeypatch, ZeroDivisionError(), "-v") == 1
        assert "Traceback" in capsys.readouterr().err

    def test_json_is_one_document_for_what_nobody_foresaw(self, monkeypatch, capsys) -> None:
        assert self.invoke(monkeypatch, ConnectorError("Broken."), "--json") == 1
        assert json.loads(capsys.readouterr().out) == {"status": "failed", "error": "Broken."}
        assert self.invoke(monkeypatch, KeyboardInterrupt(), "--json") == 130
        assert json.loads(capsys.readouterr().out)["status"] == "interrupted"
        noticed_by_duckdb = ConnectorError("An unexpected error occurred: Interrupted")
        noticed_by_duckdb.__context__ = duckdb.InterruptException("Query interrupted")
        assert self.invoke(monkeypatch, noticed_by_duckdb, "--json") == 130
        assert json.loads(capsys.readouterr().out)["status"] == "interrupted"


SUPERVISED = """
import sys, time
from connector.cli import signals
signals.GRACE_S = float(sys.argv[1])
def work(stop):
    print("ready", flush=True)
    time.sleep(600)
signals.supervised(work, on_first=lambda n: print("first", n, flush=True), on_forced=lambda n: print("forced", n))
"""


def supervised(grace_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, str(grace_s)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_second_signal_ends_at_once() -> None:
    process = supervised(600)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "first 2\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "forced 15\n")


def test_work_that_does_not_end_is_left_behind() -> None:
    process = supervised(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "first 2\nforced 2\n")


def test_faults_of_the_sandbox_are_known_by_their_names() -> None:
    from connector.cli.commands.sandbox import _filled

    given = [("latency", "0.1,0.2"), ("server_error", "0.5"), ("failing_imports", "a,b"), ("retry_after", "date")]
    assert _filled(Faults, "--fault", given) == Faults(
        latency=(0.1, 0.2), server_error=0.5, failing_imports=frozenset({"a", "b"}), retry_after="date"
    )


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize("imports", [99, 100, 101, 200, 437])
def test_check_counts_imports_over_pages(imports: int, status: Any) -> None:
    from connector.cli.commands import check
    from connector.cli.service_call import ask
    from connector.sandbox import serve
    from connector.settings import Settings

    service = Service(seed=1, switches=Switches(past_the_end=status))
    service.add_generated("customers", imports=imports, rows=1)
    with serve(service) as url:
        learned = ask(Settings.load(base_url=url, access_token=service.token), check._learn)
    assert learned["imports"] == imports
    assert learned["more_pages"] == (imports >= 100)
    assert learned["requests"] <= 4 + 2 * 3


def test_changes_after_a_first_load_are_few_lines_and_all_of_them_for_a_program(command, service: Service) -> None:
    assert command("run", SOURCES__IMPORTER__HISTORY="true").code == 0
    few = service.slugs()[0]
    for n, record in enumerate(list(service.record_slugs(few))[:3]):
        service.edit_row(few, record, {"note": f"edited {n}"})
    assert command("run", SOURCES__IMPORTER__HISTORY="true").code == 0

    shown = command("changes", "--since", "7d")
    lines = [line for line in shown.out.splitlines() if " records " in line and " insert" in line]
    assert len(lines) == len(service.slugs())
    assert all(re.search(r" (120|60) records ", line) for line in lines)
    assert shown.out.count("edited") == 3
    short = command("changes", "--since", "7d", "--limit", "2")
    assert re.search(r"… and \d+ more; --limit shows more of them, --json all", short.out)
    assert "edited" not in short.out
    told = command("changes", "--since", "7d", "--json")
    assert told.err == ""
    assert sum(each["change"] == "insert" for each in told.document["changes"]) == 360


def test_rows_are_printed_for_programs_exactly(command, service: Service) -> None:
    """A link and an address in one row are no URL with a password in it."""
    row = {"site": "https://shop.example", "opens": "8:30", "mail": "ann@example.com"}
    service.add_import("shops", [{**row, "cdn": "https://cdn.example:8443/npm/left-pad@1.4.0"}])
    assert command("run").code == 0
    sql = "SELECT data FROM records WHERE data LIKE '%shop.example%'"
    expected = {**row, "cdn": "https://cdn.example:8443/npm/left-pad@1.4.0"}
    [shown] = command("query", "--json", sql).document["rows"]
    assert json.loads(shown["data"]) == expected
    [_, line] = csv.reader(io.StringIO(command("query", "--csv", sql).out))
    assert json.loads(line[0]) == expected


def test_compact_erases_kept_rows_only_if_the_configuration_says_so(command, service: Service) -> None:
    keep = {"SOURCES__IMPORTER__DELETES": "keep"}
    assert command("run", **keep).code == 0
    slug = service.slugs()[0]
    service.delete_row(slug, next(iter(service.record_slugs(slug))))
    assert command("run", **keep).code == 0
    kept = "SELECT count(*) FROM importer_data.records WHERE _deleted_at IS NOT NULL"
    assert command("compact").code == 0
    assert command.rows(kept) == [(1,)]
    assert command("compact", SOURCES__IMPORTER__DELETES="mirror").code == 0
    assert command.rows(kept) == [(0,)]
