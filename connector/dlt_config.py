"""Look up keys in dlt's configuration, as dlt does: in a section of the pipeline first."""

from __future__ import annotations

from typing import Any


def active_pipeline() -> str | None:
    """Return the name of dlt's active pipeline, the one created last, if there is any."""
    from dlt.common.configuration.container import Container
    from dlt.common.pipeline import PipelineContext

    context = Container()[PipelineContext]
    return context.pipeline().pipeline_name if context.is_active() else None


def configured(key: str, kind: Any = None, *, pipeline: str | None = None, secret: bool = False) -> Any:
    """Return the value of a key, None if it has none; the pipeline is the active one if it is not given.

    `key` has its sections, as "sources.importer.status".
    """
    import dlt

    accessor: Any = dlt.secrets if secret else dlt.config
    name = pipeline or active_pipeline()
    own = None if name is None else accessor.get(f"{name}.{key}", kind)
    return accessor.get(key, kind) if own is None else own
