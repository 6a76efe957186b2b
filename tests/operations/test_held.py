"""A DuckDB file that somebody has open: our own run is named as one, anything else as another program."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from connector.warehouse.busy import as_busy
from connector.warehouse.lock import Holder


def said(file: Path, process: int) -> str:
    words = (
        f'IO Error: Could not set lock on file "{file}": Conflicting lock is held in /usr/bin/python3 (PID {process})'
    )
    return str(as_busy(OSError(f"{words} by user ana.")))


def test_our_own_run_is_named_as_one(tmp_path: Path) -> None:
    file, ours = tmp_path / "w[1].duckdb", Holder.of_this_process()
    assert f"Another program (PID {os.getpid()}) has {file} open" in said(file, os.getpid())
    (tmp_path / ".w[1].duckdb.importer_data.lock").touch()
    note = tmp_path / ".w[1].duckdb.importer_data.holder"
    note.write_text(json.dumps(asdict(ours)))
    assert said(file, os.getpid()).startswith(f"A run of importer-sync is under way and has {file} open ({ours})")
    assert "`importer-sync status`" in said(file, os.getpid())
    assert "Another program" in said(file, os.getpid() + 1), "a notebook beside a run of ours"
    note.write_text(json.dumps(asdict(replace(ours, process=2**22 + 1))))
    assert "Another program" in said(file, 2**22 + 1), "a run that died"
