"""`importer-sync sandbox`: serve the service on loopback, for trying things."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

from connector.cli.options import pair, whole
from connector.cli.output import Output
from connector.cli.signals import Stop, supervised
from connector.errors import ConfigError
from connector.sandbox import Faults, FileError, Service, Switches, add_flaws, add_uploads, serve

EXAMPLES = (
    "importer-sync sandbox --port 0 --imports 20 --rows 500",
    "importer-sync sandbox --port 0 --flaws",
    "importer-sync sandbox --port 0 --switch import_order=random --fault server_error=0.1 --fault latency=0.01,0.05",
)
PORT = 8080
TOKEN = "sandbox-token"  # noqa: S105
GENERATED = ("customers", "orders", "products", "employees")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=whole(0), default=PORT, help=f"port; 0 takes a free one ({PORT})")
    parser.add_argument("--seed", type=int, default=0, help="the same seed serves the same data (0)")
    parser.add_argument("--token", default=TOKEN, help=f"the bearer token to require ({TOKEN})")
    parser.add_argument("--imports", type=whole(0), default=8, metavar="N", help="generated imports (8)")
    parser.add_argument("--rows", type=whole(0), default=250, metavar="N", help="rows of each of them (250)")
    parser.add_argument(
        "--flaws",
        action="store_true",
        help="also rows that cannot be loaded, an import with a wrong row_count, and imports still being uploaded",
    )
    parser.add_argument(
        "--file", action="append", default=[], metavar="PATH", help="also serve this CSV, JSON or JSON Lines file"
    )
    parser.add_argument(
        "--rows-per-import", type=whole(1), default=1000, metavar="N", help="rows of a file in one import (1000)"
    )
    parser.add_argument(
        "--switch",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "behaviour that the interface leaves open, e.g. import_order=random, default_per_page=10, metadata=null, "
            "gzip=true"
        ),
    )
    parser.add_argument(
        "--fault",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "faults to inject, e.g. server_error=0.1, rate_limited=0.05, reset=0.01, cut=0.01, html_200=0.01, "
            "latency=FROM,TO in seconds, rate_limit_rps=20, failing_imports=SLUG,SLUG, misrouted_imports=SLUG"
        ),
    )
    parser.add_argument("--edit-every", type=whole(1), metavar="SECONDS", help="make a random edit at this interval")


def run(arguments: argparse.Namespace, output: Output) -> int:
    service = _service(arguments)
    return supervised(
        lambda stop: _serve(arguments, output, service, stop), on_first=lambda _: None, on_forced=lambda _: None
    )


def _serve(arguments: argparse.Namespace, output: Output, service: Service, stop: Stop) -> int:
    try:
        with serve(service, port=arguments.port) as url:
            _print_result(output, service, url)
            while not stop.wait(arguments.edit_every):
                for line in service.edit_randomly(1):
                    output.note(line)
    except OSError as error:
        raise ConfigError(
            f"Port {arguments.port} cannot be served on ({error.strerror}); choose another with --port, or 0 for any."
        ) from None
    return 128 + (stop() or 0)


def _print_result(output: Output, service: Service, url: str) -> None:
    imports = service.imports()
    rows = sum(shown["row_count"] for shown in imports)
    output.document({"base_url": url, "access_token": service.token, "imports": len(imports), "rows": rows})
    if output.json:
        return
    output.say(f"Serving {len(imports):,} imports with {rows:,} rows on {url} until Ctrl-C. In another terminal:")
    output.say(f"  export SOURCES__IMPORTER__BASE_URL={url}")
    output.say(f"  export SOURCES__IMPORTER__ACCESS_TOKEN={service.token}")
    output.say("  importer-sync run")


def _service(arguments: argparse.Namespace) -> Service:
    service = Service(
        arguments.seed,
        arguments.token,
        _filled(Switches, "--switch", arguments.switch),
        _filled(Faults, "--fault", arguments.fault),
    )
    for number, template in enumerate(GENERATED):
        share = len(range(number, arguments.imports, len(GENERATED)))
        add_uploads(service, template, share, arguments.rows)
    if arguments.flaws:
        add_flaws(service)
    for path in arguments.file:
        try:
            service.add_file(path, rows_per_import=arguments.rows_per_import)
        except FileError as error:
            raise ConfigError(f"--file {error}.") from None
        except OSError as error:
            raise ConfigError(f"--file {path} cannot be read ({error.strerror}).") from None
    return service


def _filled(kind: Any, option: str, given: list[tuple[str, str]]) -> Any:
    """Return the dataclass `kind` with the values given as text.

    Raises ConfigError for unknown names and wrong values.
    """
    standard = kind()
    known = {each.name: getattr(standard, each.name) for each in fields(kind)}
    values = {}
    for name, text in given:
        if name not in known:
            raise ConfigError(f"{option} {name} is not known; there are {', '.join(known)}.")
        values[name] = _value(option, name, text, known[name])
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{option}: {error}.") from None


def _value(option: str, name: str, text: str, standard: object) -> Any:
    if isinstance(standard, set):
        return frozenset(text.split(","))
    if isinstance(standard, tuple):
        ends = [_number(option, name, part) for part in text.split(",")]
        return (ends[0], ends[-1])
    if isinstance(standard, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"{option} {name} is true or false, not {text!r}.")
        return text == "true"
    if isinstance(standard, str) or text == "mixed":
        return text
    number = _number(option, name, text)
    return int(number) if isinstance(standard, int) and number == int(number) else number


def _number(option: str, name: str, text: str) -> float:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ConfigError(f"{option} {name} takes a number, not {text!r}.")
    return found
