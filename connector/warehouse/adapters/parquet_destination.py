"""Define dlt's destination of plain Parquet files, in a folder or in S3."""

from __future__ import annotations

from pathlib import Path

from connector.warehouse.adapters.folder_store import FolderStore
from connector.warehouse.adapters.lake_destination import LakeDestination
from connector.warehouse.adapters.parquet_log import ParquetLog
from connector.warehouse.s3_address import S3Address


class parquet(LakeDestination):
    """The destination; its name is in lower case, like dlt's."""

    def log_at(self, place: str, dataset: str) -> ParquetLog:
        if "://" not in place:
            return ParquetLog(FolderStore(Path(place) / dataset))
        from connector.warehouse.adapters.s3_store import S3Store  # whose packages are in the extra `s3`

        return ParquetLog(S3Store(S3Address.of(place), dataset))
