"""`importer-sync completion`: print the script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from typing import Any

import shtab

from connector.cli.main import make_parser
from connector.cli.output import Output

EXAMPLES = (
    "importer-sync completion bash > ~/.local/share/bash-completion/completions/importer-sync",
    "importer-sync completion zsh > ~/.zfunc/_importer-sync",
    "importer-sync completion fish > ~/.config/fish/completions/importer-sync.fish",
)
SHELLS = ("bash", "zsh", "fish")
INSTALL = """It is used in shells that are opened afterwards. The directory has to exist (mkdir -p), and for zsh it
has to be in fpath before compinit: fpath+=~/.zfunc in ~/.zshrc. For this shell alone, in bash:
source <(importer-sync completion bash)."""
PATHS = frozenset({"PATH", "FILE"})


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n\n{INSTALL}"
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace, output: Output) -> int:
    parser = make_parser()
    _complete_paths(parser, shtab.FILE)
    script = shtab.complete(parser, arguments.shell)
    output.document({"shell": arguments.shell, "script": script})
    if not output.json:
        print(script, flush=True)
    return 0


def _complete_paths(parser: argparse.ArgumentParser, files: Any) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_paths(below, files)
        elif action.metavar in PATHS:
            action.complete = files  # type: ignore[attr-defined]
