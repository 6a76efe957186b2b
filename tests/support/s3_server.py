"""A server of S3 on loopback: moto, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

BUCKET = "bucket"
SECRET = "the-secret-key"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
_SERVE = "import sys; from moto.server import main; main(sys.argv[1:])"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Start the server, with a bucket; return its address."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _SERVE, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
                break
            except urllib.error.URLError:
                assert server.poll() is None, "moto did not start"
                time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[str]:
    """Yield the address of an empty place, with the keys set; without them obstore asks a machine in the cloud."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}/{uuid4().hex}/lake?endpoint={s3_endpoint}"
