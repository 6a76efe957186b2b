"""From an import read to the Arrow columns of its rows.

What one import brings decides how the next one is named and typed. So imports are built one at a time, in the order
in which they are loaded; they may be built long before that, as neither the package nor its load id is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from connector.core.flatten import Flattened, flatten
from connector.core.limits import Limits
from connector.core.names import table_name
from connector.core.schema import TableSchema
from connector.models import Import, Record
from connector.reading import ImportRead
from connector.settings import Settings
from connector.tables import UTC_US

FLATTEN_ROWS = 2_000  # rows stay in the processor's cache between decoding and Arrow


@dataclass(frozen=True, slots=True)
class Rows:
    """Some records of one import as columns of one length: what raw and typed row share, and what each has alone.

    `data` is None without raw rows, `flat` without typed ones.
    """

    slug: pa.Array[Any]
    sort: pa.Array[Any]
    created_at: pa.Array[Any]
    updated_at: pa.Array[Any]
    data: pa.Array[Any] | None
    flat: Flattened | None

    def __len__(self) -> int:
        return len(self.slug)

    @property
    def nbytes(self) -> int:
        columns = [] if self.flat is None else list(self.flat.columns.values())
        return max(sum(column.nbytes for column in columns), 0 if self.data is None else self.data.nbytes)


@dataclass(frozen=True, slots=True)
class Built:
    """An import's rows; `read` has its records no more. `refusal`: why the destination cannot hold them typed."""

    read: ImportRead
    table: str | None = None
    refusal: str | None = None
    rows: tuple[Rows, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.rows))


class Builder:
    """Knows the typed tables as they will be once everything it built is loaded. Not for several threads at once."""

    def __init__(
        self,
        settings: Settings,
        schemas: Mapping[str, TableSchema],
        template_tables: Mapping[str, str],
        *,
        limits: Limits | None,
        nul_safe: bool,
    ) -> None:
        self._settings = settings
        self._schemas = dict(schemas)
        self._template_tables = dict(template_tables)
        self._limits = limits
        self._nul_safe = nul_safe

    def build(self, read: ImportRead) -> Built:
        """Takes the rows out of `read`, whatever its verdict is."""
        table = self._table_for(read.import_) if self._settings.typed else None
        slices = [read.records[at : at + FLATTEN_ROWS] for at in range(0, len(read.records), FLATTEN_ROWS)]
        flats: list[Flattened] = []
        refusal = None
        if table is not None:
            schema = self._schemas.get(table) or TableSchema(table)
            for flat in self._flatten(table, schema, slices):
                refusal = self._limits.refusal(flat.schema, [flat.columns]) if self._limits is not None else None
                if refusal is not None:
                    break
                flats.append(flat)
                schema = flat.schema
            if refusal is None:
                self._schemas[table] = schema
            else:
                table, flats = None, []
        rows = [self._rows(some, flats[n] if flats else None) for n, some in enumerate(slices)]
        return Built(replace(read, records=()), table, refusal, tuple(rows))

    def _table_for(self, import_: Import) -> str:
        table = table_name(import_.template_name, import_.template_slug, self._template_tables)
        self._template_tables.setdefault(table, import_.template_slug or "")
        return table

    def _flatten(self, table: str, schema: TableSchema, slices: Sequence[Sequence[Record]]) -> Iterator[Flattened]:
        hints = self._settings.hints.get(table, {})
        for some in slices:
            flat = flatten([record.data for record in some], schema, hints, nul_safe=self._nul_safe)
            schema = flat.schema
            yield flat

    def _rows(self, records: Sequence[Record], flat: Flattened | None) -> Rows:
        return Rows(
            pa.array([r.slug for r in records], pa.string()),
            pa.array([r.sort for r in records], pa.int64()),
            pa.array([r.created_at for r in records], UTC_US),
            pa.array([r.updated_at for r in records], UTC_US),
            pa.array([r.data for r in records], pa.binary()).cast(pa.string()) if self._settings.raw else None,
            flat,
        )
