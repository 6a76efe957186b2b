"""Sync the Importer Service into a warehouse, and prove that no row is missing.

`importer_source` is the dlt source; `sync`, `plan`, `verify` and `status` are the commands of the same names. All of
them are loaded on first use, because dlt takes half a second to import; docs/python.md shows them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from connector.errors import (
    AuthError,
    ConfigError,
    ConnectorError,
    ContractError,
    DatabaseBusyError,
    LockedError,
    NotFoundError,
    TransientError,
)

if TYPE_CHECKING:
    from connector.api import RunSummary, VerifyResult, plan, sync, verify
    from connector.cli.scheduled import run_and_exit
    from connector.maintain.planning import RunPlan
    from connector.scope import Scope
    from connector.source import importer_source
    from connector.warehouse.status import WarehouseStatus, status
    from connector.warehouse.templates import TemplateSummary, templates
    from connector.window import Window

__all__ = [
    "AuthError",
    "ConfigError",
    "ConnectorError",
    "ContractError",
    "DatabaseBusyError",
    "LockedError",
    "NotFoundError",
    "RunPlan",
    "RunSummary",
    "Scope",
    "TemplateSummary",
    "TransientError",
    "VerifyResult",
    "WarehouseStatus",
    "Window",
    "importer_source",
    "plan",
    "run_and_exit",
    "status",
    "sync",
    "templates",
    "verify",
]

_LOADED_ON_USE = {
    "RunPlan": "connector.maintain.planning",
    "RunSummary": "connector.api",
    "Scope": "connector.scope",
    "TemplateSummary": "connector.warehouse.templates",
    "VerifyResult": "connector.api",
    "WarehouseStatus": "connector.warehouse.status",
    "Window": "connector.window",
    "importer_source": "connector.source",
    "plan": "connector.api",
    "run_and_exit": "connector.cli.scheduled",
    "status": "connector.warehouse.status",
    "sync": "connector.api",
    "templates": "connector.warehouse.templates",
    "verify": "connector.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_ON_USE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
