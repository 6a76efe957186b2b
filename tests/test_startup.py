"""What pyarrow would load wherever it is installed stays where it is, and can be had by others all the same."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from connector.load.flatten_process import _Helper
from connector.startup import exempt_from_collection
from connector.transform.schema import TableSchema

PROGRAM = """
import sys
from connector.startup import prepare_imports
prepare_imports()
import pyarrow as pa
array = pa.array(["a", None])
assert array.to_pylist() == ["a", None]
print("pandas" in sys.modules)
import pandas
print(array.to_pandas().isna().tolist())
"""


def test_a_run_over_plain_http_loads_no_httpx() -> None:
    program = "import sys, connector.run.sync; print('httpx' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_nothing_is_collected_while_modules_are_loaded_but_afterwards() -> None:
    frozen = gc.get_freeze_count()
    with exempt_from_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()


def test_a_program_that_never_collects_is_left_so() -> None:
    gc.disable()
    try:
        with exempt_from_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


def test_arrow_does_without_pandas_until_somebody_wants_it() -> None:
    pytest.importorskip("pandas")
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["False", "[False, True]", ""]


def test_the_process_that_flattens_loads_neither_numpy_nor_pandas() -> None:
    helper = _Helper()
    try:
        while not helper.is_ready():
            pass
        flat = helper.flatten(pa.array([b'{"a":1}'], pa.binary()), TableSchema("t"), {}, False)
        assert flat.columns["a"].to_pylist() == [1]
        loaded = Path(f"/proc/{helper.process.pid}/maps").read_text()
    finally:
        helper.close()
    assert "/pyarrow/" in loaded
    assert "/numpy/" not in loaded
    assert "/pandas/" not in loaded
