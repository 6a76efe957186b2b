"""The recipes for schedulers: by the tools that judge such files where they are, and by rules of our own everywhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from connector.cli import main
from connector.settings import Settings

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "pipelines" / "deploy"
COMMAND = re.compile(r"(?:\S*/)?importer-sync +([a-z][^>|&;}\n]*)")
UNITS = sorted(path for path in DEPLOY.iterdir() if path.suffix in (".service", ".timer"))


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_every_command_in_a_recipe_exists(path: Path) -> None:
    found = COMMAND.findall("\n".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    for words in found:
        main.make_parser().parse_args(shlex.split(words))
    if path.name in ("crontab", "importer-sync.service", "github-actions.yml"):
        assert found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace("/opt/importer/venv/bin/importer-sync", "/bin/true")
        (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    rating = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(tmp_path / "importer-sync.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rating.returncode == 0, rating.stdout[-300:]


def test_the_unit_is_hardened_and_ends() -> None:
    service, timer = unit("importer-sync.service"), unit("importer-sync.timer")
    own = service["Service"]
    assert own["Type"] == "exec", "RuntimeMaxSec has no effect with oneshot"
    assert {name: own[name] for name in ("UMask", "ProtectSystem", "StateDirectory", "NoNewPrivileges")} == {
        "UMask": "0077",
        "ProtectSystem": "strict",
        "StateDirectory": "importer",
        "NoNewPrivileges": "yes",
    }
    assert own["RuntimeMaxSec"]
    assert own["User"] != "root"
    assert (DEPLOY / service["Unit"]["OnFailure"]).is_file()
    assert "ReadWritePaths" not in own
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_crontab_has_five_fields_and_no_percent_sign() -> None:
    lines = [line for line in (DEPLOY / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    jobs = [line for line in lines if not re.match(r"[A-Z]+=", line)]
    assert len(jobs) == 2
    for line in jobs:
        fields, command = line.split(maxsplit=5)[:5], line.split(maxsplit=5)[5]
        assert all(re.fullmatch(r"[\d*/,-]+", field) for field in fields)
        assert "%" not in command, "cron makes a line end of it"
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0


def test_the_workflow_runs_one_at_a_time_with_few_rights() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((DEPLOY / "github-actions.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is False
    job = workflow["jobs"]["sync"]
    assert job["timeout-minutes"] > 50, "max_run_time ends a run before the runner does"
    environment = job["env"]
    assert "secrets." in environment["SOURCES__IMPORTER__ACCESS_TOKEN"]
    assert "secrets." in environment["DESTINATION__POSTGRES__CREDENTIALS"]
    steps = job["steps"]
    assert all("${{" not in step.get("run", "") for step in steps), "an expression in a script is an injection"
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    assert next(step for step in steps if "checkout" in step.get("uses", ""))["with"]["persist-credentials"] is False
    known_settings(environment)


def known_settings(environment: dict[str, Any]) -> None:
    for name in environment:
        prefix = "SOURCES__IMPORTER__"
        assert not name.startswith(prefix) or name.removeprefix(prefix).lower() in Settings.model_fields, name


def test_the_cron_job_never_overlaps_and_has_no_privileges() -> None:
    spec = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    job = spec["jobTemplate"]["spec"]
    assert job["backoffLimit"] == 0
    assert job["activeDeadlineSeconds"]
    pod = job["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["terminationGracePeriodSeconds"] > 10, "a run that is asked to stop commits within ten seconds"
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    main.make_parser().parse_args(container["args"])
    by_name = {each["name"]: each for each in container["env"]}
    secret = ("SOURCES__IMPORTER__ACCESS_TOKEN", "DESTINATION__POSTGRES__CREDENTIALS")
    assert all("secretKeyRef" in by_name[name]["valueFrom"] for name in secret)
    known_settings(by_name)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"/data", "/tmp"}, "what the image writes to"


def test_the_image_is_small_pinned_and_runs_as_any_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    stages = [line for line in lines if line.startswith("FROM ")]
    assert len(stages) == 2, "what builds is not what is shipped"
    assert all(re.search(r":\d[\w.]*-slim-\w+", line) for line in stages), "a tag that says its version"
    last = lines[lines.index(stages[1]) :]
    assert [line for line in last if line.startswith("USER ")] == ["USER 10001:10001"]
    assert not [line for line in lines if re.match(r"(ADD|MAINTAINER|EXPOSE) ", line)]
    assert not [line for line in lines if re.search(r"\b(curl|wget|sudo|apt-get)\b", line)]
    assert not [line for line in lines if re.search(r"(token|password|secret)\s*=", line, re.IGNORECASE)]
    installs = [line for line in re.split(r"&&|\n", text.replace("\\\n", " ")) if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line or "--no-deps --no-index" in line for line in installs)
    assert any("install -d -m 1777 /data" in line for line in last), "any uid writes there"
    assert [line for line in last if line.startswith("ENTRYPOINT")] == ['ENTRYPOINT ["importer-sync"]']
    [command] = [line for line in last if line.startswith("CMD ")]
    main.make_parser().parse_args(re.findall(r'"([^"]+)"', command))
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            assert all((CHECKOUT / source).exists() for source in line.split()[1:-1]), line


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not here")
def test_hadolint_takes_the_image() -> None:
    ended = subprocess.run(["hadolint", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
