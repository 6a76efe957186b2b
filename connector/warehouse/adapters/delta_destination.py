"""Define dlt's destination of Delta tables in a folder."""

from __future__ import annotations

from pathlib import Path

from connector.warehouse.adapters.delta_log import DeltaLog
from connector.warehouse.adapters.lake_destination import LakeDestination


class delta(LakeDestination):
    """The destination; its name is in lower case, like dlt's."""

    def log_at(self, place: str, dataset: str) -> DeltaLog:
        return DeltaLog(Path(place) / dataset)
