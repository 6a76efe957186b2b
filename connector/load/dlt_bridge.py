"""What is used of dlt beyond its documented interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dlt
from dlt.common.configuration.container import Container
from dlt.common.storages.load_package import LoadPackageStateInjectableContext

from connector.warehouse.tables import Emission, hints


class Marker:
    """Tells dlt the table and hints of each emission: in full where they are new to it, by name after that."""

    def __init__(self) -> None:
        self._told: dict[str, Mapping[str, Any]] = {}

    def __call__(self, emission: Emission) -> Any:
        arguments = hints(emission)
        if self._told.get(emission.table) == arguments:
            return dlt.mark.with_table_name(emission.rows, emission.table)
        self._told[emission.table] = arguments
        made = dlt.mark.make_hints(**arguments)
        return dlt.mark.with_hints(emission.rows, made, create_table_variant=True)


def current_load_id() -> str:
    """The id of the package that dlt is extracting into, from dlt's own context of the extract step."""
    return Container()[LoadPackageStateInjectableContext].load_id
