"""Values under privacy rules: in no file, output or table, whatever becomes of the run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connector.sandbox import Faults, Service, serve
from tests.cli.conftest import TOKEN, Command
from tests.types.conftest import postgres_uri

__all__ = ["postgres_uri"]

KEY = "the key of the tests, not a value"
RULES = {
    "*": {"email": "hash", "contacts.*.mail": "null", "re:(?i)phone": "null"},
    "people": {"ssn": "drop", "iban": "mask:4"},
    "staff": {"allow": ["id", "address.city", "email"]},
    "metadata": {"uploader": "drop", "phone": "mask:2", "mail": "hash"},
}
ROW = (
    '{"id":1.50,"email":"CANARY-1@x","em\\u0061il":"CANARY-2@x","ssn":"CANARY-3","iban":"CANARY-4",'
    '"Home Phone":"CANARY-5",'
    '"contacts":[{"mail":"CANARY-6","n":1e400}]}'
)
FLAT = '{"id":2,"email":"CANARY-7@x","ssn":"CANARY-8","iban":"CANARY-9-6789","note":"stays"}'
STAFF = '{"id":3,"address":{"city":"Oslo","street":"CANARY-14"},"email":"CANARY-15","new":["CANARY-16"]}'
BESIDE_ITS_DATA = (
    '{"slug":"beside","sort":7,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z",'
    '"data":{"ssn":"CANARY-17"},"iban":"CANARY-18-6789","email":"CANARY-19"}'
)


def add_staff(service: Service) -> None:
    """Add what is under an `allow` list, under other rules of metadata, and beside the data of a record."""
    service.add_import("staff", [STAFF], {"phone": "CANARY-20-89", "mail": "CANARY-21"}, slug="staff-1")
    service.add_raw_record("first", BESIDE_ITS_DATA)


@pytest.fixture
def people() -> Service:
    service = Service(seed=3, token=TOKEN)
    service.add_import("people", [ROW, FLAT], {"uploader": "CANARY-10", "team": "blue"}, slug="first")
    return service


@pytest.fixture
def place(people: Service, tmp_path: Path) -> Iterator[Command]:
    with serve(people) as url:
        yield Command(
            tmp_path,
            {
                "SOURCES__IMPORTER__BASE_URL": url,
                "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
                "SOURCES__IMPORTER__PRIVACY": json.dumps(RULES),
                "SOURCES__IMPORTER__PRIVACY_KEY": KEY,
                "DLT_DATA_DIR": str(tmp_path / "dlt"),
            },
        )


def leaks(place: Command) -> list[str]:
    """Where a value, the key or the token is to be found."""
    needles = (b"CANARY-", KEY.encode(), TOKEN.encode())
    said = [f"output {n}" for n, text in enumerate(place.outputs) if any(each in text.encode() for each in needles)]
    files = [path for path in place.directory.rglob("*") if path.is_file()]
    assert files
    return said + [str(path) for path in files if any(each in path.read_bytes() for each in needles)]


def test_no_value_under_a_rule_is_written_or_shown(place: Command, people: Service) -> None:
    people.add_raw_record("first", '{"slug":"bad","data":"CANARY-11"}')
    people.add_raw_record("first", '{"data":{"a":"CANARY-12"}}')
    people.add_raw_record("first", '{"data":{"a":"CANARY-13"}}')
    assert place("preview", "--json").code == 0
    ended = place("run", "--json", "-v")
    assert (ended.code, ended.document["records_rejected"]) == (3, 3)
    assert leaks(place) == []
    data = [json.loads(text) for (text,) in place.rows("SELECT data FROM importer_data.records ORDER BY sort")]
    assert data[1]["iban"] == "*********6789"
    assert (data[0].keys(), data[0]["contacts"][0]["mail"]) == ({"id", "email", "iban", "Home Phone", "contacts"}, None)
    assert [json.loads(text) for (text,) in place.rows("SELECT metadata FROM importer_data.imports")] == [
        {"team": "blue"}
    ]
    columns = {name for (name,) in place.rows("SELECT column_name FROM importer_data.sync_fields")}
    assert "ssn" not in columns
    payloads = place.rows("SELECT payload FROM importer_data.sync_rejects")
    assert all(text.startswith("[withheld]") for (text,) in payloads)
    found = place("verify", "--deep", "--json")
    assert {each["kind"] for each in found.document["differences"]} == {"record_rejected"}
    assert not any("not in sync_rejects" in each["sentence"] for each in found.document["differences"])
    assert place("run", "--json").document["imports_changed"] == 0
    assert leaks(place) == []


def test_changed_rules_are_applied_by_the_next_run(place: Command) -> None:
    before: dict[str, Any] = {"SOURCES__IMPORTER__PRIVACY": "{}"}
    assert place("run", **before).code == 0
    assert place("doctor", **before).code == 0
    found = place("doctor", "--json")
    kinds = [each["kind"] for each in found.document["findings"]]
    assert (found.code, kinds) == (3, ["older_privacy_rules"])
    assert "2 rows of 1 imports" in found.document["findings"][0]["sentence"]
    assert place("run", "--json").document["imports_changed"] == 1
    live = ("records", "records_people", "imports")
    assert not any("CANARY-" in repr(place.rows(f"SELECT * FROM importer_data.{table}")) for table in live)
    assert place.rows("SELECT count(ssn) FROM importer_data.records_people") == [(0,)]
    assert (place("doctor").code, place("verify", "--deep").code) == (0, 0)
    assert place("run", "--json").document["imports_changed"] == 0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"SOURCES__IMPORTER__PRIVACY": '{"people": {"ssn": "dorp"}}'}, "privacy.people"),
        ({"SOURCES__IMPORTER__PRIVACY_KEY": ""}, "privacy_key"),
        ({"SOURCES__IMPORTER__PRIVACY__PEOPLE__SSN": "drop"}, "PRIVACY__PEOPLE__SSN"),
    ],
)
def test_rules_that_cannot_be_kept_end_a_run_before_any_request(
    place: Command, people: Service, changed: dict[str, Any], named: str
) -> None:
    ended = place("run", **changed)
    assert (ended.code, people.requests.total()) == (2, 0)
    assert named in ended.err


def test_rules_for_an_unknown_template_are_a_warning(place: Command) -> None:
    rules: dict[str, Any] = {"SOURCES__IMPORTER__PRIVACY": json.dumps({**RULES, "peopel": {"a": "drop"}})}
    ended = place("run", **rules)
    assert ended.code == 0
    assert "The privacy rules for peopel match no template" in ended.err
    assert "The privacy rules for peopel match no template" in place("check", **rules).out


@pytest.mark.thorough
def test_what_misspelt_rules_are_probably_for_is_not_read(place: Command, people: Service) -> None:
    people.add_import("planets", [{"name": "Mars"}])

    def rules(**changed: Any) -> dict[str, Any]:
        others = {title: section for title, section in RULES.items() if title != "people"}
        return {"SOURCES__IMPORTER__PRIVACY": json.dumps({**others, **changed})}

    wrong = rules(Poeple=RULES["people"])
    assert "did you mean people?" in place("preview", **wrong).err
    for _ in range(2):
        ended = place("run", "--json", **wrong)
        assert (ended.code, ended.document["records_loaded"] > 1) == (3, False)
        assert "privacy has rules for 'Poeple', which no template is called: did you mean people?" in ended.err
    slug = people.slugs()[0]
    assert place("backfill", "--import", slug, **wrong).code == 3
    assert leaks(place) == []
    assert "Nothing of a template that the rules may be meant for is read" in place("check", **wrong).out
    assert place("run", **rules(people=RULES["people"])).code == 0
    assert leaks(place) == []
    to_come: dict[str, Any] = {"people": RULES["people"], "planet": {"name": "drop"}}
    assert place("run", **rules(**to_come)).code == 3
    ended = place("run", **rules(**to_come, planets={}))
    assert (ended.code, "planet match no template" in ended.err) == (0, True), "it is said that planets needs no rules"


@pytest.mark.thorough
def test_a_misspelt_path_is_a_warning(place: Command) -> None:
    right = {"email": "hash", "ssn": "drop", "contacts.*.mail": "null", "contacts.*.none": "null", "re:nothing": "drop"}
    wrong = {"Iban": "mask:4", "homephone": "drop", "emial": "null", "contacts.x": "drop", "mail": "drop"}
    rules: dict[str, Any] = {
        "SOURCES__IMPORTER__PRIVACY": json.dumps(
            {"*": right, "people": wrong, "metadata": {"TEAM": "drop", "uploader": "drop", "elsewhere": "null"}}
        )
    }
    ended = place("run", **rules)
    assert ended.code == 0
    case = "differs from it only by case or blanks"
    expected = [
        f"privacy.metadata: the path 'TEAM' matches no field, and 'team' {case}",
        f"privacy.people: the path 'Iban' matches no field, and 'iban' {case}",
        "privacy.people: the path 'emial' matches no field: did you mean email?",
        f"privacy.people: the path 'homephone' matches no field, and 'Home Phone' {case}",
    ]
    said = [line.partition("warning: ")[2] for line in ended.err.splitlines() if "warning: privacy" in line]
    assert said == expected
    assert all(sentence in place("check", **rules).out for sentence in expected)
    assert "warning: privacy" not in place("run").err


def test_a_minted_token_is_shown_once_and_written_nowhere(place: Command) -> None:
    minted = place("session", "create", "--importer-slug", "demo").out.strip()
    assert minted.count(".") == 2
    place.outputs.clear()
    assert place("session", "create", "--importer-slug", "nobody").code == 1
    assert place("run", "-v").code == 0
    assert leaks(place) == []
    head, payload, _ = minted.split(".")  # those of the second are the same but for the moment
    files = [path for path in place.directory.rglob("*") if path.is_file()]
    assert not any(each.encode() in path.read_bytes() for path in files for each in (minted, f"{head}.{payload}"))
    assert not any(head in text for text in place.outputs)


def test_a_failure_and_a_kill_leave_no_value(place: Command, people: Service) -> None:
    place.environment["SOURCES__IMPORTER__HISTORY"] = "true"
    add_staff(people)
    people.add_import("people", [ROW] * 150, slug="second")
    people.add_import("people", [ROW] * 150, slug="third")
    people.faults = Faults(failing_imports={"third"})
    assert place("run").code == 3
    assert leaks(place) == []
    people.faults = Faults(latency=(0.2, 0.2))
    process = place.start("backfill", "--full", "--json")
    while people.requests["records"] < 6:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    place.end(process)
    assert leaks(place) == []
    people.faults = Faults()
    assert place("run").code == 0
    assert leaks(place) == []
    [(data,)] = place.rows("SELECT data FROM importer_data.records WHERE import_slug = 'staff-1'")
    assert json.loads(data).keys() == {"id", "address", "email"}
    assert json.loads(data)["address"] == {"city": "Oslo"}
    [(extra,)] = place.rows("SELECT extra FROM importer_data.records WHERE slug = 'beside'")
    assert json.loads(extra)["iban"] == "**********6789"
    [(metadata,)] = place.rows("SELECT metadata FROM importer_data.imports WHERE slug = 'staff-1'")
    assert json.loads(metadata)["phone"] == "**********89"
    assert place.rows("SELECT count(*) > 0 FROM importer_data.records_people_history") == [(True,)]


@pytest.mark.thorough
def test_nothing_of_it_is_in_the_files_of_a_postgresql(place: Command, people: Service, postgres_uri: str) -> None:
    """Look in tables, staging and log, after a failure and a kill; what stays is found, so the search finds."""
    place.environment["SOURCES__IMPORTER__HISTORY"] = "true"
    add_staff(people)
    people.add_raw_record("first", '{"slug":"bad","data":"CANARY-11"}')
    people.add_import("people", [ROW, *[FLAT] * 150], slug="second")
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("DROP DATABASE IF EXISTS canaries WITH (FORCE)")
        cursor.execute("CREATE DATABASE canaries")
        cursor.execute("SHOW data_directory")
        [[folder]] = cursor.fetchall()
        to = postgres_uri.removesuffix("postgres") + "canaries"
        people.faults = Faults(failing_imports={"second"})
        assert place("--to", to, "run").code == 3
        people.faults = Faults(latency=(0.2, 0.2))
        process = place.start("--to", to, "backfill", "--full")
        while people.requests["records"] < 6:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        place.end(process)
        people.faults = Faults()
        assert place("--to", to, "run").code == 3
        cursor.execute("CHECKPOINT")
    assert leaks(place) == []
    written = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    assert any(b"*********6789" in content for content in written.values())
    needles = (b"CANARY-", KEY.encode(), TOKEN.encode())
    assert [path for path, content in written.items() if any(needle in content for needle in needles)] == []
