"""`run`, as the command uses it: in a process of its own, until a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

SCRIPT = """
from connector.sandbox import Service, run
service = Service(seed=1)
service.add_generated("orders", rows=5)
run(service, port=0, on_ready=lambda base_url: print(base_url, flush=True))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_run_serves_until_a_signal_and_prints_nothing_itself(sent):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        reply = httpx.get(f"{base_url}/api/v1/imports", headers={"Authorization": "Bearer sandbox-token"})
        process.send_signal(sent)
        printed, complaints = process.communicate(timeout=60)
    assert [row["row_count"] for row in reply.json()["data"]] == [5]
    assert printed == ""
    if sent is signal.SIGTERM:
        assert (process.returncode, complaints) == (-signal.SIGTERM, "")
    else:
        assert complaints.strip().endswith("KeyboardInterrupt")
