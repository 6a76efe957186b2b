"""Define dlt's destination of plain Parquet files, in a folder."""

from __future__ import annotations

from pathlib import Path

from connector.warehouse.adapters.folder_store import FolderStore
from connector.warehouse.adapters.lake_destination import LakeDestination
from connector.warehouse.adapters.parquet_log import ParquetLog


class parquet(LakeDestination):
    """The destination; its name is in lower case, like dlt's."""

    def log_at(self, place: str, dataset: str) -> ParquetLog:
        return ParquetLog(FolderStore(Path(place) / dataset))
