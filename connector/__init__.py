"""Syncs the Importer Service into a warehouse, and proves that no row is missing.

`importer_source` is the dlt source; it is loaded on first use, for dlt takes half a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.errors import (
    AuthError,
    ConfigError,
    ConnectorError,
    ContractError,
    LockedError,
    NotFoundError,
    TransientError,
)

if TYPE_CHECKING:
    from connector.source import importer_source

__all__ = [
    "AuthError",
    "ConfigError",
    "ConnectorError",
    "ContractError",
    "LockedError",
    "NotFoundError",
    "TransientError",
    "importer_source",
]


def __getattr__(name: str) -> Any:
    if name == "importer_source":
        from connector.source import importer_source

        return importer_source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
