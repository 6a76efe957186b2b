"""`importer-sync session create`: create an importer session token."""

from __future__ import annotations

import argparse

from connector.cli.options import add_global, pair
from connector.cli.output import Output
from connector.cli.service_call import ask
from connector.cli.source_settings import load_settings
from connector.errors import ConfigError
from connector.service.client import ServiceClient

EXAMPLES = ("importer-sync session create --importer-slug demo --metadata user=ana --metadata plan=pro",)


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a token and print it, and nothing else, on stdout")
    create.add_argument("--importer-slug", required=True, metavar="SLUG", help="the importer that the session is for")
    create.add_argument(
        "--metadata",
        type=pair,
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="metadata of the session, as text; one pair or more",
    )
    add_global(create, again=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    metadata = dict(arguments.metadata)
    if len(metadata) < len(arguments.metadata):
        raise ConfigError("--metadata gives one key twice; each key can have one value.")

    async def create(client: ServiceClient) -> str:
        session = await client.create_session(arguments.importer_slug, metadata or None)
        return session.token.get_secret_value()

    token = ask(load_settings(arguments.pipeline_name), create)
    if output.json:
        output.document({"token": token})
    else:
        print(token, flush=True)  # the one secret that a command prints on request
    return 0
