"""`importer-sync init`: ask for what is needed, write dlt's settings files, and check that they work."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote, urlsplit

from connector.cli.commands.check import examine, report
from connector.cli.configuration import address_of
from connector.cli.environment import settings_folder
from connector.cli.output import Output
from connector.cli.redaction import add_secret
from connector.cli.settings_files import Setting, SettingsFile, ignore_in_git, open_folder
from connector.errors import ConfigError
from connector.service.client import ServiceClient
from connector.settings import Settings, is_loopback

T = TypeVar("T")
EXAMPLES = (
    "importer-sync init",
    "importer-sync init --base-url https://service.example --token-stdin < token.txt",
)
BASE_URL = ("sources", "importer", "base_url")
PLAIN_HTTP = ("sources", "importer", "allow_plain_http")
TOKEN = ("sources", "importer", "access_token")
DESTINATION = ("importer_sync", "destination")
TRIES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", metavar="URL", help="where the service is")
    parser.add_argument(
        "--token-stdin",
        action="store_true",
        help="read the access token from standard input; the variable SOURCES__IMPORTER__ACCESS_TOKEN does as well",
    )
    parser.add_argument(
        "-y",
        "--yes",
        "--force",
        dest="force",
        action="store_true",
        help="replace settings that have another value, without asking",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    folder = settings_folder()
    files = {name: SettingsFile(folder / name) for name in ("config.toml", "secrets.toml")}
    try:
        wanted = _Interview(arguments, output, files).wanted()
    except _InputEnded:
        raise ConfigError("The input ended before every question was answered; nothing was written.") from None
    open_folder(folder)
    written = _write(wanted, files, output)
    arguments.to = arguments.destination = None  # from now on the files have these values
    _mention_environment(output, wanted)
    checked = examine(arguments)
    output.document({"ok": checked.ok, "written": written, "check": checked.document})
    report(output, checked)
    if checked.ok:
        output.say("Ready: `importer-sync preview` shows what would be loaded, `importer-sync run` loads it.")
    else:
        output.note(
            "The settings were written although the check failed. Correct them with `importer-sync init`, and test "
            "them with `importer-sync check`.",
            level="warning",
            event="init.unproven",
        )
    return checked.exit_code


class _InputEnded(Exception):
    """The input ended before all questions were answered."""


class _Interview:
    """Answers from flags, the environment, the existing files, and the person at the terminal, in this order."""

    def __init__(self, arguments: argparse.Namespace, output: Output, files: dict[str, SettingsFile]) -> None:
        self._arguments = arguments
        self._output = output
        self._files = files
        self._typed: set[tuple[str, ...]] = set()
        self._asks = not (arguments.token_stdin or arguments.json) and sys.stdin.isatty() and sys.stderr.isatty()

    def wanted(self) -> list[Setting]:
        """Return the settings to write. Raises ConfigError for what is missing, wrong or set differently."""
        answers = [
            Setting("config.toml", BASE_URL, self._base_url()),
            Setting("secrets.toml", TOKEN, self._token()),
            *self._destination(),
        ]
        return [each for each in answers if self._may_be_written(each)]

    def _base_url(self) -> str:
        known = str(self._files["config.toml"].get(BASE_URL) or "")
        plain = os.environ.get("__".join(PLAIN_HTTP).upper()) or self._files["config.toml"].get(PLAIN_HTTP)
        given = self._arguments.base_url or os.environ.get("SOURCES__IMPORTER__BASE_URL")
        if given or not self._asks:
            given = given or known
            if not given:
                raise ConfigError("base_url is missing: give --base-url, or run init on a terminal to be asked for it.")
            return _valid_address(given, plain)
        self._typed.add(BASE_URL)
        return self._ask_until_valid(
            lambda: _valid_address(self._with_scheme(self._answer("Address of the service", known)), plain)
        )

    def _with_scheme(self, address: str) -> str:
        """Return the URL with the missing scheme added, if the user confirms that."""
        if "://" in address or not {".", ":"} & set(address):
            return address
        host = address.partition("/")[0].rpartition(":")[0] or address
        guess = f"{'http' if is_loopback(host) else 'https'}://{address}"
        return guess if self._answer(f"Is it {guess}?", "yes").lower() in ("y", "yes") else address

    def _token(self) -> str:
        known = str(self._files["secrets.toml"].get(TOKEN) or "")
        if self._arguments.token_stdin and not sys.stdin.isatty():
            given = sys.stdin.readline().strip()
            if not given:
                raise ConfigError("--token-stdin was given, but the first line of standard input is empty.")
            return _valid_token(given)
        given = os.environ.get("SOURCES__IMPORTER__ACCESS_TOKEN") or ("" if self._asks else known)
        if given:
            return _valid_token(given)
        if not self._asks:
            raise ConfigError(
                "access_token is missing: give --token-stdin and the token on standard input, set "
                "SOURCES__IMPORTER__ACCESS_TOKEN, or run init on a terminal to be asked for it."
            )
        self._typed.add(TOKEN)
        keep = ", Enter keeps the current one" if known else ""
        prompt = f"Access token (not shown{keep}): "
        return self._ask_until_valid(lambda: _valid_token(_hidden(prompt) or known))

    def _destination(self) -> list[Setting]:
        if self._arguments.destination:
            return [Setting("config.toml", DESTINATION, self._arguments.destination)]
        if self._arguments.to or not self._asks:
            return self._at(self._arguments.to) if self._arguments.to else []
        known = self._files["config.toml"].get(DESTINATION)
        usual = f"{known}, unchanged" if known else "duckdb:importer.duckdb"

        def asked() -> list[Setting]:
            answer = self._answer("Load into duckdb:FILE or postgresql://user@host/database", usual)
            return [] if answer == usual else self._at(answer)

        answers = self._ask_until_valid(asked)
        self._typed.update(each.keys for each in answers)
        return answers

    def _at(self, uri: str) -> list[Setting]:
        parts = urlsplit(uri)
        if self._asks and parts.scheme.startswith("postgres") and parts.username and not parts.password:
            password = _hidden(f"Password of {parts.username} (not shown, Enter for none): ")
            if password:
                host = parts.netloc.rpartition("@")[2]
                uri = parts._replace(netloc=f"{parts.username}:{quote(password, safe='')}@{host}").geturl()
        kind, credentials = address_of(uri)
        return [
            Setting("config.toml", DESTINATION, kind),
            Setting("secrets.toml", ("destination", kind, "credentials"), credentials),
        ]

    def _may_be_written(self, wanted: Setting) -> bool:
        known = self._files[wanted.file].get(wanted.keys)
        if known == wanted.value:
            return False
        if known is None or self._arguments.force or wanted.keys in self._typed:
            return True
        file = self._files[wanted.file].shown
        if not self._asks:
            raise ConfigError(f"{wanted.words} is set differently in {file}; --force replaces it.")
        answer = self._answer(f"{wanted.words} is set differently in {file}; replace it?", "no")
        return answer.lower() in ("y", "yes")

    def _answer(self, question: str, standard: str) -> str:
        print(f"{question} [{standard}]: " if standard else f"{question}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise _InputEnded
        return line.strip() or standard

    def _ask_until_valid(self, ask: Callable[[], T]) -> T:
        """Call `ask` again after an invalid answer."""
        for _ in range(TRIES - 1):
            try:
                return ask()
            except ConfigError as error:
                self._output.note(str(error))
        return ask()


def _hidden(prompt: str) -> str:
    """Return what is typed without being shown. Raises ConfigError if the terminal cannot hide it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt, sys.stderr).strip()
        except getpass.GetPassWarning:
            raise ConfigError("This terminal cannot hide what is typed; use --token-stdin instead.") from None
        except EOFError:
            raise _InputEnded from None


def _valid_address(base_url: str, plain_http: object) -> str:
    return _valid(base_url.strip(), "any-token", plain_http).base_url


def _valid_token(token: str) -> str:
    add_secret(token)
    return _valid("https://service.example", token).access_token.get_secret_value()


def _valid(base_url: str, token: str, plain_http: object = None) -> Settings:
    ServiceClient(base_url, token)  # refuses everything that a run would refuse
    return Settings.load(base_url=base_url, access_token=token, allow_plain_http=plain_http)


def _write(wanted: list[Setting], files: dict[str, SettingsFile], output: Output) -> dict[str, list[str]]:
    """Write the settings; return the keys written, by file."""
    written: dict[str, list[str]] = {}
    for name in ("secrets.toml", "config.toml"):
        file = files[name]
        for setting in (each for each in wanted if each.file == name):
            file.set(setting.keys, setting.value)
            written.setdefault(file.shown, []).append(".".join(setting.keys))
        private = name == "secrets.toml"
        if file.shown in written:
            file.save(private=private)
            output.say(f"{file.shown}: wrote {', '.join(written[file.shown])}{', readable by you alone' * private}")
        else:
            output.say(f"{file.shown}: nothing to change")
        if private and file.close_to_others():
            output.say(f"{file.shown}: others could read it, now only you can")
    ignoring = ignore_in_git(files["secrets.toml"].path)
    if ignoring is not None:
        written[ignoring.name] = ["secrets.toml"]
        output.say(f"{ignoring.name}: git will ignore secrets and DuckDB files")
    return written


def _mention_environment(output: Output, wanted: list[Setting]) -> None:
    for setting in wanted:
        variable = "__".join(setting.keys).upper()
        if os.environ.get(variable, setting.value) != setting.value:
            output.note(f"note: {variable} is set to something else, and the environment overrides the files.")
