"""Rows flattened in another process come out as they would here, and nothing that happens to it loses one."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.load import flatten_process
from connector.load.flatten_process import Flattener, Texts
from connector.transform.flatten import flatten
from connector.transform.schema import TableSchema
from tests.transform.test_flatten_properties import HINTS, ROWS, dump

TABLE = TableSchema("records_t")
IS_OF_USE = flatten_process._is_of_use
PLAIN = [b'{"a": %d, "b": {"c": "x"}}' % n for n in range(20)]


def started() -> Flattener:
    flattener = Flattener()
    for _ in range(2):
        flattener(Texts(PLAIN), TABLE, {}, nul_safe=False)
    return flattener


def has_helper(flattener: Flattener) -> bool:
    return flattener._helper is not None


def pid_of(flattener: Flattener) -> int:
    assert flattener._helper is not None
    return flattener._helper.process.pid


def await_ready(flattener: Flattener) -> None:
    until = time.monotonic() + 60
    while flattener._helper is None or not flattener._helper.is_ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(flatten_process, "ENOUGH_ROWS", 20)
        patched.setattr(flatten_process, "FEW_ROWS", -1)
        patched.setattr(flatten_process, "_is_of_use", lambda: True)
        yield


@pytest.fixture(scope="module")
def shared(at_once: None) -> Iterator[Flattener]:
    flattener = started()
    await_ready(flattener)
    yield flattener
    await_ready(flattener)  # no example may have ended it
    flattener.close()


@pytest.fixture
def flattener() -> Iterator[Flattener]:
    flattener = started()
    await_ready(flattener)
    yield flattener
    flattener.close()


@given(ROWS, ROWS, HINTS, st.booleans())
def test_the_result_is_the_same(
    shared: Flattener, before: list[Any], rows: list[Any], hints: dict[str, str], safe: bool
) -> None:
    schema = flatten([dump(row, ascii_only=True).encode() for row in before], TABLE, hints, nul_safe=safe).schema
    texts = [dump(row, ascii_only=True).encode() for row in rows]
    there = shared(Texts(texts), schema, hints, nul_safe=safe)
    here = flatten(texts, schema, hints, nul_safe=safe)
    assert there == here
    assert list(there.columns) == list(here.columns)
    assert [column.type for column in there.columns.values()] == [column.type for column in here.columns.values()]


def test_it_is_done_there(flattener: Flattener, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = flatten(PLAIN, TABLE)
    monkeypatch.setattr(flatten_process, "flatten_here", None)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == expected


def test_rows_nested_too_deep_for_json_come_back_too(flattener: Flattener) -> None:
    rows = [b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
    assert flattener(Texts(rows), TABLE, {}, nul_safe=False) == flatten(rows, TABLE)
    assert has_helper(flattener)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_it_is_killed_the_rows_are_flattened_here(flattener: Flattener, how: signal.Signals) -> None:
    pid = pid_of(flattener)
    os.kill(pid, how)
    for _ in range(3):
        assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
    assert not has_helper(flattener)
    assert not is_running(pid)


def test_rows_that_end_it_fail_here_as_they_always_would(flattener: Flattener) -> None:
    with pytest.raises(ValueError, match="JSON"):
        flattener(Texts([b'{"a": ']), TABLE, {}, nul_safe=False)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)


def test_one_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten_process, "_SEND_TIMEOUT", struct.pack("ll", 0, 200_000))
    flattener = started()
    await_ready(flattener)
    pid = pid_of(flattener)
    os.kill(pid, signal.SIGSTOP)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
    assert not is_running(pid)


def test_an_interrupted_question_is_the_last(flattener: Flattener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be taken for that to the next."""
    receive = flatten_process._receive

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flatten_process, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flattener(Texts([b'{"other": 1}']), TABLE, {}, nul_safe=False)
    monkeypatch.setattr(flatten_process, "_receive", receive)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
    assert not has_helper(flattener)


@pytest.mark.parametrize("changed", ["an installed file", "the limit of recursion"])
def test_one_that_runs_other_code_is_not_used(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flattener = started()
    if changed == "an installed file":
        monkeypatch.setattr(flatten_process, "_STAMPS", [*flatten_process._STAMPS[1:], flatten_process._STAMPS[0]])
    else:
        monkeypatch.setattr(sys, "getrecursionlimit", lambda: 5_000)
    until = time.monotonic() + 60
    while has_helper(flattener) and time.monotonic() < until:
        assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
        time.sleep(0.01)
    assert not has_helper(flattener)


def test_the_code_is_known_by_its_files() -> None:
    stamped = {Path(file).name for file, _, _ in flatten_process._STAMPS}
    assert {"flatten_process.py", "flatten.py", "casting.py", "schema.py", "json_rows.py", "__init__.py"} <= stamped


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_where_it_cannot_be_started_nothing_is_lost(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    flattener = started()
    assert not has_helper(flattener)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)


def test_without_room_for_another_file_it_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", full)
    flattener = started()
    assert not has_helper(flattener)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)


def test_where_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert IS_OF_USE()
    with monkeypatch.context() as one_processor:
        one_processor.setattr(os, "sched_getaffinity", lambda _: {0})
        assert not IS_OF_USE()
    with monkeypatch.context() as embedded:
        embedded.setattr(sys, "executable", "/usr/bin/an-application")
        assert not IS_OF_USE()
    with monkeypatch.context() as frozen:
        frozen.setattr(sys, "frozen", True, raising=False)
        assert not IS_OF_USE()
    isolated = "from connector.load import flatten_process; print(flatten_process._is_of_use())"
    for flag in ("-I", "-E"):
        said = subprocess.run([sys.executable, flag, "-c", isolated], capture_output=True, text=True, check=True).stdout
        assert said.strip() == "False"


def test_large_batches_stay_here(flattener: Flattener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would hold copies of them."""
    monkeypatch.setattr(flatten_process, "MANY_BYTES", sum(map(len, PLAIN)) - 1)
    monkeypatch.setattr(flatten_process._Helper, "flatten", None)
    texts = Texts(PLAIN)
    assert flattener(texts, TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
    assert has_helper(flattener)
    assert "column" not in vars(texts), "nor does this one hold two"


def test_few_rows_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten_process, "ENOUGH_ROWS", 40)
    flattener = started()
    assert not has_helper(flattener)
    flattener(Texts(PLAIN), TABLE, {}, nul_safe=False)
    assert has_helper(flattener)
    flattener.close()


def test_it_ends_with_the_run(flattener: Flattener) -> None:
    pid = pid_of(flattener)
    flattener.close()
    flattener.close()
    assert not is_running(pid)
    assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)


def test_once_closed_it_starts_none() -> None:
    """What builds rows in a thread may go on for a moment when the run is over."""
    flattener = Flattener()
    flattener.close()
    for _ in range(3):
        assert flattener(Texts(PLAIN), TABLE, {}, nul_safe=False) == flatten(PLAIN, TABLE)
    assert not has_helper(flattener)


def test_it_ends_when_the_run_is_killed() -> None:
    script = (
        "import time; from connector.load import flatten_process; flatten_process.ENOUGH_ROWS = 0;"
        "flatten_process._is_of_use = lambda: True; f = flatten_process.Flattener();"
        "f(flatten_process.Texts([b'{}']), flatten_process.TableSchema('t'), {}, nul_safe=False);"
        "print(f._helper.process.pid, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert is_running(pid)
    run.kill()
    run.wait()
    run.stdout.close()
    until = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(pid)
