"""Serve the Importer Service on loopback: for the demo, for tests, and for trying things.

The sandbox implements the interface exactly, with a switch for everything that the interface leaves open. It shares no
code with the connector, so that a mistake in one does not hide a mistake in the other.

    service = Service(seed=1)
    service.add_generated("orders", imports=3, rows=200)
    with serve(service) as base_url:
        ...
"""

from connector.sandbox.catalogue import STATUSES, Template
from connector.sandbox.faults import Faults
from connector.sandbox.files import FileError
from connector.sandbox.messages import Request, Response
from connector.sandbox.server import make_app, run, serve
from connector.sandbox.service import Service
from connector.sandbox.sessions import session_claims
from connector.sandbox.switches import Switches
from connector.sandbox.templates import TEMPLATES
from connector.sandbox.uploads import add_flaws, add_uploads

__all__ = [
    "STATUSES",
    "TEMPLATES",
    "Faults",
    "FileError",
    "Request",
    "Response",
    "Service",
    "Switches",
    "Template",
    "add_flaws",
    "add_uploads",
    "make_app",
    "run",
    "serve",
    "session_claims",
]
