"""What the shells complete, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from connector.cli import main

# What bash does at a press of the tabulator key: it calls the function that `complete -p` names.
ASK = r"""
source "$1"; shift
f=$(complete -p importer-sync | sed -E 's/.*-F ([^ ]+).*/\1/')
COMP_WORDS=(importer-sync "$@"); COMP_CWORD=$#; COMPREPLY=()
"$f" importer-sync "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(main, "prepare_environment", lambda **_: None)

    def written(shell: str) -> Path:
        assert main.invoke(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return written


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["back"], {"backfill"}),
        (["run", "--rech"], {"--recheck-days"}),
        (["session", ""], {"create"}),
        (["--log-format", ""], {"text", "json"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["sandbox", "--file", "some_f"], {"some_file.csv"}),
    ],
)
def test_bash_completes(script, tmp_path: Path, words: list[str], offered: set[str]) -> None:
    (tmp_path / "some_file.csv").touch()
    asked = ["bash", "--norc", "-c", ASK, "bash", str(script("bash")), *words]
    ended = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stderr == ""
    assert set(ended.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(script, shell: str) -> None:
    path = script(shell)
    for command in main.COMMANDS:
        assert command in path.read_text()
    if shutil.which(shell) is not None:
        ended = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_help_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.invoke(["completion", "--help"])
    shown = capsys.readouterr().out
    assert "source <(importer-sync completion bash)" in shown
    assert "bash-completion/completions/importer-sync" in shown
