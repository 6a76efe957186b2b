"""What is configured wrongly is refused before any request, with the key, its place, its value and the nearest name."""

from __future__ import annotations

import argparse
import json
import os
import stat
from pathlib import Path
from typing import Any

import dlt
import pytest
from dlt.common.configuration.container import Container
from dlt.common.pipeline import PipelineContext
from dlt.pipeline.exceptions import PipelineStepFailed

from connector.api import sync
from connector.cli import main
from connector.cli.configuration import open_pipeline
from connector.cli.source_settings import settings_if_configured
from connector.config_keys import location_of
from connector.errors import ConfigError, ConnectorError
from connector.nearest import suggest_known
from connector.reporting.html.writing import write
from connector.settings import Settings
from connector.source import configured_settings, importer_source, settings_of
from connector.warehouse.destination import local_file
from connector.warehouse.runs_table import full_modes

NEEDED: dict[str, Any] = {"base_url": "http://127.0.0.1:9", "access_token": "very-secret-token"}


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes `.dlt/config.toml`; what it says is read by dlt afresh."""
    monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", NEEDED["access_token"])

    def write(text: str) -> None:
        (tmp_path / ".dlt").mkdir(exist_ok=True)
        (tmp_path / ".dlt" / "config.toml").write_text(text)
        reload_context()

    yield write
    monkeypatch.undo()
    reload_context()
    context = Container()[PipelineContext]
    if context.is_active():
        context.deactivate()


def reload_context() -> None:
    from dlt.common.configuration.specs.pluggable_run_context import PluggableRunContext

    Container()[PluggableRunContext].reload(".")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.invoke(arguments) == 2
    said: str = capsys.readouterr().err
    assert NEEDED["access_token"] not in said
    return said


def test_an_unknown_key_in_a_file_is_refused_with_the_nearest(configured, capsys) -> None:
    configured(
        '[sources.importer]\nbase_url = "http://127.0.0.1:9"\nbatch_row = 5\n[importer_sync]\ndestnation = "x"\n'
    )
    said = refused(capsys, "check")
    assert (
        "batch_row under [sources.importer] is set in .dlt/config.toml, but nothing reads it: did you mean batch_rows?"
        in said
    )
    assert "did you mean destination?" in said
    with pytest.raises(ConfigError, match="did you mean batch_rows"):
        importer_source()


def test_the_address_in_the_section_of_a_pipeline_is_used(configured, tmp_path: Path) -> None:
    configured("")
    (tmp_path / ".dlt" / "secrets.toml").write_text('[crm.destination.duckdb]\ncredentials = "own.duckdb"\n')
    reload_context()
    for name, file in (("crm", "own.duckdb"), ("importer", "importer.duckdb")):
        named = argparse.Namespace(to=None, destination=None, dataset="importer_data", pipeline_name=name)
        assert str(local_file(open_pipeline(named))) == str(tmp_path / file)


OWN_SECTION = """
[sources.importer]
base_url = "http://127.0.0.1:9"
[crm.sources.importer]
exclude_templates = ["Orders"]
[crm.sources.importer.privacy."*"]
email = "drop"
"""


def test_the_section_of_a_pipeline_counts_for_it_alone(configured, tmp_path: Path) -> None:
    configured(OWN_SECTION)
    made = configured_settings("crm")
    assert (made.exclude_templates, made.privacy) == (("Orders",), {"*": {"email": "drop"}})
    other = configured_settings("importer")
    assert (other.exclude_templates, other.privacy) == (None, {})
    early = importer_source()
    pipeline = dlt.pipeline("crm", destination="duckdb", pipelines_dir=str(tmp_path / "p"))
    assert settings_of(importer_source(), "crm").privacy == {"*": {"email": "drop"}}
    configured(OWN_SECTION.replace("exclude_templates", "exclude_template"))
    with pytest.raises(ConfigError, match="did you mean exclude_templates"):
        sync(pipeline, early)
    configured(OWN_SECTION)
    for run in (lambda: sync(pipeline, early), lambda: pipeline.run(early)):
        with pytest.raises(
            (ConfigError, PipelineStepFailed), match=r"call importer_source\(\) after creating the pipeline"
        ):
            run()


def test_a_command_reads_the_section_of_its_pipeline(configured, capsys) -> None:
    configured(OWN_SECTION.replace("exclude_templates", "exclude_template"))
    assert "exclude_template under [crm.sources.importer]" in refused(capsys, "check", "--pipeline-name", "crm")
    configured(OWN_SECTION.replace("[crm.sources.importer]", "[crm.source.importer]"))
    assert "did you mean [crm.sources]" in refused(capsys, "check", "--pipeline-name", "crm")


@pytest.mark.parametrize(
    "variable", ["sources__importer__privacy", "SOURCES__IMPORTER__Status", "crm__sources__importer__raw"]
)
def test_a_variable_in_lower_case_is_refused(variable: str, configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(variable, "{}")
    said = refused(capsys, "check", "--pipeline-name", "crm")
    assert f"The environment variable {variable} is set, but nothing reads it: did you mean {variable.upper()}?" in said


@pytest.mark.parametrize(
    "variable",
    [
        "IMPORTER__SYNC__DESTINATION",
        "IMPORTER__SYNC_DESTINATION",
        "importer_sync__destination",
        "IMPORTER__IMPORTER_SYNC__DESTINATION",
    ],
)
def test_a_variable_with_wrong_underscores_is_refused(variable: str, configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(variable, "sqlite")
    assert "did you mean IMPORTER_SYNC__DESTINATION?" in refused(capsys, "check")


@pytest.mark.parametrize(
    "section",
    [
        "sources.importer.records",
        "sources.importer.importer_source",
        "sources.importer.schema",
        "sources.importer_sync",
        "sources.connector",
        "runtime",
        "destination.duckdb",
        "Crm.sources.importer",
        "crm.importer",
        "pipelines.crm.sources.importer",
    ],
)
def test_rules_where_nothing_looks_for_them_are_refused(section: str, configured, capsys) -> None:
    configured(f'[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[{section}.privacy."*"]\nemail = "drop"\n')
    said = refused(capsys, "check", "--pipeline-name", "crm")
    assert "but nothing reads it" in said
    assert "[sources.importer]" in said


@pytest.mark.parametrize(
    "section",
    [
        "crm",
        "sources",
        "sources.importer.importer",
        "crm.sources",
        "other",
        "sources.other",
        "other.sources.importer",
        "other.program",
    ],
)
def test_rules_where_dlt_may_look_for_them_are_not_refused(section: str, configured) -> None:
    configured(f'[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[{section}.privacy."*"]\nprivacy_key = "drop"\n')
    assert bool(configured_settings("crm").privacy) == ("other" not in section)


@pytest.mark.parametrize(
    "variable",
    [
        "CRM_SOURCES__IMPORTER__EXCLUDE_TEMPLATES",
        "CRM__IMPORTER__PRIVACY",
        "SOURCES__IMPORTER__RECORDS__PRIVACY",
    ],
)
def test_a_variable_where_nothing_looks_for_it_is_refused(variable: str, configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(variable, "[]")
    assert f"{variable} is set, but nothing reads it" in refused(capsys, "check", "--pipeline-name", "crm")


@pytest.mark.parametrize("bare", [True, False])
def test_settings_count_as_configured_wherever_dlt_finds_them(bare: bool, configured, monkeypatch) -> None:
    """`compact` and `doctor` follow them: rows that mirror erases stayed with a bare ACCESS_TOKEN."""
    configured('[sources.importer]\ndeletes = "mirror"\n')
    monkeypatch.delenv("SOURCES__IMPORTER__ACCESS_TOKEN")
    assert settings_if_configured("importer") is None
    for name, value in NEEDED.items():
        monkeypatch.setenv(name.upper() if bare else f"SOURCES__{name}".upper(), value)
    found = settings_if_configured("importer")
    assert found is not None
    assert "deletes" in found.model_fields_set
    assert location_of("access_token", "importer") is not None


def test_status_and_report_look_in_the_section_of_the_pipeline(configured, tmp_path: Path) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[crm.sources.importer]\nstatus = "completed"\n')
    for name, modes in (("crm", ("incremental", "incremental (completed)")), ("other", ("incremental",))):
        dlt.pipeline(name, destination="duckdb", pipelines_dir=str(tmp_path / "p"))
        assert full_modes() == modes


@pytest.mark.parametrize("section", ["", "[sources]", "[sources.importer.importer]", "[crm]"])
def test_status_and_report_look_wherever_a_run_does(section: str, configured, tmp_path: Path) -> None:
    configured(f'{section}\nstatus = "completed"\n')
    dlt.pipeline("crm", destination="duckdb", pipelines_dir=str(tmp_path / "p"))
    assert full_modes() == ("incremental", "incremental (completed)")


@pytest.mark.parametrize("variable", ["AIRFLOW_VAR_IMPORTER_PRIVACY_KEY", "CRM__EU__SOURCES__IMPORTER__PRIVACY_KEY"])
def test_a_variable_of_others_or_that_is_read_is_not_refused(variable: str, configured, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[tool.importer]\nprivacy_level = "x"\n')
    monkeypatch.setenv(variable, "secret")
    assert (configured_settings("crm__eu").privacy_key is None) == variable.startswith("AIRFLOW")


def test_a_project_that_is_not_there_is_refused(configured, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DLT_PROJECT_DIR", str(tmp_path / "projekt"))
    configured("")
    assert f"There is no folder {tmp_path / 'projekt'}" in refused(capsys, "check")
    with pytest.raises(ConfigError, match="There is no folder"):
        importer_source(**NEEDED)


@pytest.mark.parametrize("what", ["a folder", "a link that leads nowhere", "a folder of another user"])
def test_settings_that_cannot_be_read_are_refused(what: str, configured, capsys, tmp_path: Path) -> None:
    """dlt would take them for none, and load in clear text what they protect."""
    configured("")
    file = tmp_path / ".dlt" / "config.toml"
    file.unlink()
    if what == "a folder":
        file.mkdir()
    elif what == "a link that leads nowhere":
        file.symlink_to("..data/config.toml")
    else:
        if os.geteuid() == 0:
            pytest.skip("root can enter every folder")
        file.parent.chmod(0)
    try:
        assert "is there, but not a" in refused(capsys, "check")
        with pytest.raises(ConfigError, match="is there, but not a"):
            importer_source(**NEEDED)
    finally:
        file.parent.chmod(0o700)


@pytest.mark.parametrize("base_url", [" http://host.example/a?api_key=hidden", "ftp://hidden@host.example/a"])
def test_a_wrong_address_is_shown_without_what_may_be_secret(base_url: str, configured, capsys) -> None:
    configured(f'[sources.importer]\nbase_url = "{base_url}"\n')
    said = refused(capsys, "check")
    assert "host.example/a" in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("name", "value"), [("EXCLUDE_TEMPLATES__0", "Salaries"), ("HINTS__T__N", "bigint"), ("PRIVACY__T__N", "drop")]
)
def test_an_element_in_a_variable_of_its_own_is_refused(name: str, value: str, configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(f"SOURCES__IMPORTER__{name}", value)
    said = refused(capsys, "check")
    assert f"the environment variable SOURCES__IMPORTER__{name}, but nothing reads it" in said
    with pytest.raises(ConfigError, match="nothing reads it"):
        importer_source()


@pytest.mark.parametrize(
    ("table", "other"),
    [*((table, other) for table in ("privacy", "hints") for other in ("secrets", "section")), ("privacy", "variable")],
)
def test_a_table_of_settings_in_two_places_is_refused(
    table: str, other: str, configured, capsys, monkeypatch, tmp_path: Path
) -> None:
    """dlt takes it from one of them, and ignores the other without a word."""
    one = f'[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[sources.importer.{table}.a]\nb = "text"\n'
    also = f'[sources.importer.{"importer." if other == "section" else ""}{table}.c]\nd = "text"\n'
    configured(one + (also if other == "section" else ""))
    if other == "secrets":
        (tmp_path / ".dlt" / "secrets.toml").write_text(also)
        reload_context()
    if other == "variable":
        monkeypatch.setenv(f"SOURCES__IMPORTER__{table.upper()}", '{"c": {"d": "text"}}')
    said = refused(capsys, "check")
    assert f"{table} is set in " in said
    assert "and only one of them would count: put all of it into one." in said
    with pytest.raises(ConfigError, match="only one of them would count"):
        importer_source()


@pytest.mark.parametrize(
    "place", ["[privacy.c]", "[sources.privacy.c]", "[other.sources.importer.privacy.c]", "variable"]
)
def test_rules_in_a_wider_section_too_are_refused(place: str, configured, capsys, monkeypatch) -> None:
    """dlt looks there as well, and ignores one of the two places."""
    rules = '[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[sources.importer.privacy.a]\nb = "drop"\n'
    configured(rules if place == "variable" else f'{rules}{place}\nd = "drop"\n')
    if place == "variable":
        monkeypatch.setenv("SOURCES__PRIVACY", '{"c": {"d": "drop"}}')
    if "other" in place:
        importer_source()
        dlt.pipeline("other", destination="duckdb")
    with pytest.raises(ConfigError, match=r"privacy is set in .* and only one of them would count"):
        importer_source()


@pytest.mark.parametrize(("name", "value"), [("STATUS", "completed"), ("RAW", "false"), ("PRIVACY", "{}")])
def test_a_setting_in_a_variable_without_a_section_is_refused(
    name: str, value: str, configured, capsys, monkeypatch
) -> None:
    """dlt would take it, whoever set it, and rows would be left out."""
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(name, value)
    said = refused(capsys, "check")
    assert (
        f"{name} would be taken for the setting {name.lower()}: unset it, or call it SOURCES__IMPORTER__{name}" in said
    )
    with pytest.raises(ConfigError, match="would be taken for the setting"):
        importer_source()


def test_all_names_that_differ_by_case_are_suggested() -> None:
    assert suggest_known("salary", {"Salary", "SALARY", "orders"}) == "did you mean SALARY or Salary?"


def test_a_key_in_secrets_beside_rules_in_config_is_as_documented(configured, tmp_path: Path) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[sources.importer.privacy."*"]\nemail = "hash"\n')
    (tmp_path / ".dlt" / "secrets.toml").write_text('[sources.importer]\nprivacy_key = "a long random text"\n')
    reload_context()
    importer_source()


@pytest.mark.parametrize(
    ("section", "meant"),
    [("sources.importr", "sources.importer"), ("source.importer", "sources"), ("importer-sync", "importer_sync")],
)
def test_a_misspelt_section_is_refused(section: str, meant: str, configured, capsys) -> None:
    configured(f'[sources.importer]\nbase_url = "http://127.0.0.1:9"\n[{section}]\ndeletes = "keep"\n')
    assert f"did you mean [{meant}]?" in refused(capsys, "run")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SOURCES__IMPORTR__DELETES", "SOURCES__IMPORTER__DELETES"),
        ("SOURCE__IMPORTER__HINTS", "SOURCES__IMPORTER__HINTS"),
        ("SOURCES_IMPORTER_DELETES", "SOURCES__IMPORTER__DELETES"),
        ("SOURCES__IMPORTER_ACCESS_TOKEN", "SOURCES__IMPORTER__ACCESS_TOKEN"),
        ("IMPORTER_SYNC_NOTIFY_URL", "IMPORTER_SYNC__NOTIFY_URL"),
        ("IMPORTERSYNC__NOTIFY_URL", "IMPORTER_SYNC__NOTIFY_URL"),
    ],
)
def test_a_misspelt_variable_is_refused(variable: str, meant: str, configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(variable, "a value that is not repeated")
    said = refused(capsys, "run")
    assert f"{variable} is set, but nothing reads it: did you mean {meant}?" in said
    assert "a value" not in said


@pytest.mark.parametrize(
    "variable", ["SOURCES__IMPORTER_EU__DELETES", "SOURCES__OTHER__DELETES", "SOURCE__NAME", "IMPORTER__A", "_"]
)
def test_a_variable_of_others_is_left_to_them(variable: str, configured, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv(variable, "theirs")
    assert importer_source().name == "importer"


def test_what_dlt_reads_itself_under_the_source_is_left_to_it(configured) -> None:
    configured(
        '[sources.importer]\nbase_url = "http://127.0.0.1:9"\nschema_contract = "evolve"\n'
        "[sources.importer.data_writer]\nbuffer_max_items = 9\n[sources.importer_eu]\nbatch_row = 1\n"
    )
    assert importer_source().name == "importer"


def test_a_wrong_value_is_named_with_its_key_and_place(configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://127.0.0.1:9"\ndeletes = "no"\n')
    monkeypatch.setenv("SOURCES__IMPORTER__RECONCILE", "perhaps")
    said = refused(capsys, "check")
    assert "deletes = 'no' (set in .dlt/config.toml)" in said
    assert "reconcile = 'perhaps' (set in the environment variable SOURCES__IMPORTER__RECONCILE)" in said


def test_a_wrong_secret_is_never_shown() -> None:
    with pytest.raises(ConfigError) as error:
        Settings.load(base_url="https://x", access_token="two secret-words")
    assert "secret-words" not in str(error.value)


@pytest.mark.parametrize(
    "host", ["service.example", "10.0.0.1", "127.0.0.1@evil.example", "0.0.0.0", "127.0.0.1.example"]
)
def test_the_token_crosses_no_network_in_plain_text_unless_allowed(host: str) -> None:
    token, plain = NEEDED["access_token"], f"http://{host}"
    with pytest.raises(ConfigError, match=r"base_url is an http:// address.* could read the access token.*allow_plain"):
        Settings.load(base_url=plain, access_token=token)
    assert Settings.load(base_url=plain, access_token=token, allow_plain_http=True).base_url == plain
    assert Settings.load(base_url=f"https://{host}", access_token=token)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "127.9.9.9", "[::1]:9", "localhost"])
def test_plain_http_to_this_machine_is_allowed(host: str) -> None:
    assert Settings.load(base_url=f"http://{host}", access_token=NEEDED["access_token"])


def test_every_command_refuses_plain_http_before_any_request(configured, capsys, monkeypatch) -> None:
    configured('[sources.importer]\nbase_url = "http://service.invalid"\n')
    for command in (["check"], ["preview"], ["plan"], ["run"], ["backfill", "--full"], ["verify"]):
        assert "set allow_plain_http = true" in refused(capsys, *command)
    assert "set allow_plain_http = true" in refused(capsys, "session", "create", "--importer-slug", "x")
    assert "set allow_plain_http = true" in refused(capsys, "init", "--base-url", "http://service.invalid")


@pytest.mark.parametrize("hint", ["decimal(50,2)", "decimal(5,9)", "dat", "text(3,1)", "date:%d.%B", "bool:ja"])
def test_a_hint_that_cannot_be_is_refused_before_any_request(hint: str) -> None:
    with pytest.raises(ConfigError, match=r"hints\.records_x\.a is not valid"):
        Settings.load(**NEEDED, hints={"records_x": {"a": hint}})


def test_a_setting_among_the_hints_is_named_as_one() -> None:
    with pytest.raises(ConfigError, match="move it above the line"):
        Settings.load(**NEEDED, hints={"records_x": {"a": "date", "history": True}})
    assert Settings.load(**NEEDED, hints={"records_x": {"status": "text"}}).hints


def test_a_status_that_the_service_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean completed"):
        Settings.load(**NEEDED, status="complete")
    assert Settings.load(**NEEDED, status="submitted").status == "submitted"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--destination", "snowflake"),
            "The destination 'snowflake' is not supported, because it has not been proven",
        ),
        (("--dataset", "my data"), "--dataset 'my data' is not a valid name; use my_data"),
        (("--pipeline-name", "a b/c"), "--pipeline-name 'a b/c' is not a valid name"),
        (("--pipeline-name", "crm-eu"), "--pipeline-name 'crm-eu' is not a valid name"),
    ],
)
def test_names_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str, capsys) -> None:
    said = refused(capsys, "status", *arguments)
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_an_unproven_destination_is_tried_where_that_is_allowed(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SOURCES__IMPORTER__ALLOW_EXPERIMENTAL", "true")
    assert "of destination snowflake are missing" in refused(capsys, "status", "--destination", "snowflake")
    assert "dlt's cannot replace rows" in refused(capsys, "status", "--destination", "filesystem")


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        (dlt.destinations.motherduck("md:d"), "it has not been proven there"),
        (dlt.destinations.sqlalchemy("sqlite:///w.db"), "keys that differ only in case are equal there"),
    ],
)
def test_a_program_is_refused_the_same_destinations(destination: Any, why: str, tmp_path: Path) -> None:
    pipeline = dlt.pipeline("p", destination=destination, dataset_name="d", pipelines_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=why):
        sync(pipeline, importer_source(**NEEDED))


def test_a_report_goes_through_no_link_and_into_a_pipe(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.html", tmp_path / "link.html", tmp_path / "pipe"
    target.write_text("before")
    link.symlink_to(target)
    with pytest.raises(ConnectorError, match="it is a link"):
        write(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "before"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert write(pipe, "through") == 7
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_hint_that_matches_nothing_is_told_by_run_and_check(command) -> None:
    hints = '{"records_customer": {"id": "text"}, "records_orders": {"no such": "text"}}'
    ran = command("run", SOURCES__IMPORTER__HINTS=hints)
    assert ran.code == 0
    for said in (ran.err, command("check", SOURCES__IMPORTER__HINTS=hints).out):
        assert "The hints for records_customer match no table: did you mean records_customers" in said
        assert "The hint for records_orders.no such matches no column" in said


def test_a_backfill_of_a_time_without_uploads_is_no_typo(command) -> None:
    command("run")
    assert command("backfill", "--until", "1999-01-01").code == 0


def test_plain_http_behind_https_is_named_without_retries(command) -> None:
    address = command.environment["SOURCES__IMPORTER__BASE_URL"].replace("http://", "https://")
    ended = command("preview", SOURCES__IMPORTER__BASE_URL=address)
    assert ended.code == 2
    assert "base_url has to begin with http://" in ended.err
    assert "6 attempts" not in ended.err


def test_the_log_of_a_failed_run_is_json_with_an_error(command) -> None:
    ended = command("run", "--log-format", "json", SOURCES__IMPORTER__ACCESS_TOKEN="wrong-token")
    levels = [json.loads(line)["level"] for line in (ended.out + ended.err).splitlines()]
    assert levels.count("error") >= 2
