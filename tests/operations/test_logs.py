"""`--log-format json`: every line on stderr is an object that a program can search, and none gives a secret away."""

from __future__ import annotations

import io
import json
import logging
import traceback
from typing import Any

import pytest

from connector import telemetry
from connector.cli.logs import start_logging
from connector.cli.output import Output
from connector.cli.redaction import add_secret
from connector.errors import ConfigError
from connector.reporting.views.query import check_reads
from connector.sandbox import Faults, Service


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_logs_its_steps_as_objects(command, service: Service) -> None:
    service.faults = Faults(server_error=0.4)
    ended = command("run", "--log-format", "json", "--json", "-v")
    assert ended.code == 0
    lines = objects(ended.err)
    assert all({"time", "level", "event", "message"} <= set(line) for line in lines)
    [began] = [line for line in lines if line["event"] == "run.began"]
    [over] = [line for line in lines if line["event"] == "run.ended"]
    assert over["run_id"] == began["run_id"] == ended.document["run_id"]
    assert over["records_loaded"] == 360
    [committed] = [line for line in lines if line["event"] == "package.committed"]
    assert committed["load_id"] in ended.document["load_ids"]
    pages = {
        (line["import_slug"], line["page"])
        for line in lines
        if line["event"] == "request.answered" and line["endpoint"].endswith("/records")
    }
    assert {(slug, 1) for slug in service.slugs()} <= pages
    retried = [line for line in lines if line["event"] == "request.retried"]
    assert len(retried) == ended.document["retries"] > 0
    assert all(line["status"] >= 500 and line["level"] == "warning" and line["delay_s"] >= 0 for line in retried)
    assert {line["run_id"] for line in lines if line["event"].startswith(("run.", "request.", "package."))} == {
        ended.document["run_id"]
    }


@pytest.mark.parametrize("verbose", [False, True])
def test_a_traceback_of_dlt_is_a_line_and_told_once(verbose: bool) -> None:
    written = io.StringIO()
    start_logging(Output(verbose=verbose), logging.StreamHandler(written))
    log = logging.getLogger("dlt")
    for job in ("a.parquet", "b.parquet"):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            log.exception("Transient exception in job %s", job)
            log.warning("Job for %s retried with message %s", job, traceback.format_exc())
    log.warning("something else")
    if verbose:
        assert written.getvalue().count("Traceback (most recent call last)") == 4
        return
    first, second = written.getvalue().splitlines()
    assert first.endswith("ERROR Transient exception in job a.parquet: OSError: [Errno 28] No space left on device")
    assert second.endswith("WARNING something else")


def test_what_goes_wrong_is_an_object_too(command) -> None:
    ended = command("--log-format", "json", "run", SOURCES__IMPORTER__ACCESS_TOKEN="wrong-token-0815")
    assert ended.code == 1
    assert "wrong-token-0815" not in ended.err
    lines = objects(ended.err)
    assert any("401" in line["message"] for line in lines)
    ended = command("run", "--log-format", "json", SOURCES__IMPORTER__BASE_URL="nonsense")
    assert ended.code == 2
    [line] = objects(ended.err)
    assert (line["event"], line["level"]) == ("command.failed", "error")
    ended = command("run", "--nonsense", "--log-format=json")
    assert ended.code == 2
    [line] = objects(ended.err)
    assert "--nonsense" in line["message"]


@pytest.fixture
def written():
    """Lines as a command logs them in either format; what the test changed of the process's logging is put back."""
    names = ("connector", "dlt", "opentelemetry", "py.warnings")
    logs = [logging.getLogger(name) for name in names]
    before = [(log, list(log.handlers), log.propagate, log.level) for log in logs]
    last = logging.lastResort
    stream = io.StringIO()

    def start(log_format: str) -> io.StringIO:
        output = Output(log_json=log_format == "json")
        start_logging(output, logging.StreamHandler(stream), steps=True)
        return stream

    yield start
    logging.captureWarnings(False)
    logging.lastResort = last
    for log, handlers, propagate, level in before:
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_of_every_kind_are_scrubbed(written, log_format: str) -> None:
    add_secret("hush-hush-1234")
    stream = written(log_format)
    log = logging.getLogger("connector.run")
    log.warning(
        "Said %s.", "hush-hush-1234", extra={"import_slug": "of hush-hush-1234", "load_ids": ["hush-hush-1234"]}
    )
    try:
        raise ValueError("hush-hush-1234 in postgresql://ana:horse-9@host/db")
    except ValueError:
        log.exception("Broken.")
    logging.getLogger("dlt").warning("dlt says hush-hush-1234")
    text = stream.getvalue()
    assert "hush-hush-1234" not in text
    assert "horse-9" not in text
    assert text.count("***") >= 4
    if log_format == "json":
        first, second, third = objects(text)
        assert first["import_slug"] == "of ***"
        assert "Traceback" in second["exception"]
        assert third["event"] == "dlt"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_another_library_logs_is_written_like_our_own(written, log_format: str) -> None:
    """Python itself would write it to stderr as it is, if the library's logger has no handler."""
    add_secret("hush-hush-1234")
    stream = written(log_format)
    log = logging.getLogger(f"a.library.{log_format}")  # unknown to pytest, which would add a handler
    log.propagate = False
    log.warning("It said \x1b[2J hush-hush-1234\n2026-11-23T00:00:00Z ERROR forged")
    log.info("Nothing.")
    with pytest.raises(ConfigError):
        check_reads("CALL f('\x1b[2J')", "postgres")
    [line] = stream.getvalue().splitlines()
    assert "hush-hush-1234" not in line
    assert "\x1b" not in line
    assert ("It said" in line, "***" in line) == (True, True)


def test_dlt_cannot_change_the_format(written) -> None:
    stream = written("json")
    for handler in logging.getLogger("dlt").handlers:
        handler.setFormatter(logging.Formatter("dlt's own: %(message)s"))
    logging.getLogger("dlt").error("something")
    assert objects(stream.getvalue())[0]["message"] == "something"


def test_the_run_id_is_the_runs_own(written) -> None:
    stream = written("json")
    token = telemetry.current_run.set("run-1")
    logging.getLogger("connector.run").info("inside")
    telemetry.current_run.reset(token)
    logging.getLogger("connector.run").info("outside")
    inside, outside = objects(stream.getvalue())
    assert inside["run_id"] == "run-1"
    assert "run_id" not in outside
