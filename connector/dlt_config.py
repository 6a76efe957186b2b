"""Look up keys in dlt's configuration, as dlt does: in a section of the pipeline first."""

from __future__ import annotations

from typing import Any

SOURCE = ("sources", "importer")


def active_pipeline() -> str | None:
    """Return the name of dlt's active pipeline, the one created last, if there is any."""
    from dlt.common.configuration.container import Container
    from dlt.common.pipeline import PipelineContext

    context = Container()[PipelineContext]
    return context.pipeline().pipeline_name if context.is_active() else None


def above_of(pipeline: str | None) -> list[tuple[str, ...]]:
    """Return the sections below which dlt looks for a setting: the pipeline's own and, after it, none."""
    return [*([] if pipeline is None else [(pipeline,)]), ()]


def levels(pipeline: str | None) -> list[tuple[str, ...]]:
    """Return the sections in which dlt looks for a setting (dlt's `resolve_single_provider_value`)."""
    sections = (*SOURCE, "importer")
    return [(*above, *sections[:depth]) for above in above_of(pipeline) for depth in range(len(sections), -1, -1)]


def configured(key: str, kind: Any = None, *, pipeline: str | None = None, secret: bool = False) -> Any:
    """Return the value of a key, None if it has none; the pipeline is the active one if it is not given.

    `key` has its sections, as "sources.importer.status".
    """
    import dlt

    accessor: Any = dlt.secrets if secret else dlt.config
    pipeline = pipeline or active_pipeline()
    *sections, name = key.split(".")
    own = levels(pipeline) if tuple(sections) == SOURCE else [(*above, *sections) for above in above_of(pipeline)]
    values = (accessor.get(".".join([*level, name]), kind) for level in own)
    return next((value for value in values if value is not None), None)
