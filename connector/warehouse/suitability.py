"""Check that a destination can hold a warehouse without losing a row, as dlt is configured and installed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlt.common.configuration import inject_section, resolve_configuration
from dlt.common.configuration.exceptions import ConfigurationException
from dlt.common.configuration.specs import ConfigSectionContext
from dlt.common.destination.configuration import ParquetFormatConfiguration
from dlt.destinations.job_client_impl import SqlJobClientBase
from dlt.normalize.configuration import ItemsNormalizerConfiguration
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse.destination import (
    destination_config,
    destination_name,
    destination_type,
    duckdb_file,
    lake_catalog,
    lake_files,
    lake_place,
)
from connector.warehouse.tables import RECORDS

PROVEN = ("duckdb", "postgres", "sqlite", "mysql", "ducklake", "delta", "parquet")
_REFUSED = {
    "because its times have milliseconds and the ledger compares microseconds": ("athena", "dremio"),
    "because it cannot be queried in SQL": ("lance", "lancedb", "qdrant", "weaviate"),
    "because dlt's cannot replace rows, so deletes and corrections would be lost (--to filesystem:///dir does)": (
        "filesystem",
    ),
    "because keys that differ only in case are equal there as dlt sets it up; use --to sqlite:… or mysql:…": (
        "sqlalchemy",
    ),
}
_EXPERIMENTAL = (
    *("snowflake", "bigquery", "databricks", "mssql", "synapse"),
    *("fabric", "redshift", "motherduck", "clickhouse"),
)
_OF_DUCKDB = ("main", "memory", "temp", "system")  # schemas and databases of a DuckDB without a file
_NORMALIZER = ("normalize", "parquet_normalizer")
_SOURCE = ("sources", "importer", "importer")  # in which dlt looks for settings of what the source yields


def check_supported(pipeline: Pipeline) -> None:
    """Raise ConfigError for a destination that cannot replace the rows of an import, e.g. plain files."""
    destination = pipeline.destination
    if destination is None or not issubclass(destination.client_class, SqlJobClientBase):
        raise ConfigError(
            f"The destination {destination_name(pipeline)!r} cannot replace rows, so deletes and corrections would be "
            "lost; use duckdb, postgres or another SQL destination of dlt."
        )


def _check_normalizer(pipeline: Pipeline) -> None:
    """Raise ConfigError if dlt is configured to give every row an id, because our rows have only our columns.

    The setting is resolved as in dlt, so that a setting for a single pipeline counts too.
    """
    with inject_section(ConfigSectionContext(pipeline_name=pipeline.pipeline_name)):
        told = resolve_configuration(ItemsNormalizerConfiguration(), sections=_NORMALIZER)
    if told.add_dlt_id:
        own = ".".join([pipeline.pipeline_name, *_NORMALIZER])
        raise ConfigError(
            f"dlt's configuration has add_dlt_id = true under [{'.'.join(_NORMALIZER)}], but the connector's rows "
            f"have their own key; remove it, or set add_dlt_id = false under [{own}] for this pipeline alone."
        )


def _check_writer(pipeline: Pipeline) -> None:
    """Raise ConfigError if dlt is configured to write times to Parquet that are not the given ones.

    `flavor = "spark"` counts nanoseconds, which overflow before 1677 and after 2262; a coarser unit drops digits.
    """
    with inject_section(ConfigSectionContext(pipeline_name=pipeline.pipeline_name)):
        told = resolve_configuration(ParquetFormatConfiguration(), sections=_SOURCE)
    for name, value, exact in (
        ("flavor", told.flavor, ""),
        ("coerce_timestamps", told.coerce_timestamps, "us"),
    ):
        if value not in (None, exact):
            raise ConfigError(
                f'dlt\'s configuration has {name} = "{value}" under [data_writer], which alters times; remove it, or '
                f'set {name} = "{exact}" under [{pipeline.pipeline_name}.data_writer] for this pipeline alone.'
            )


def _check_staging(pipeline: Pipeline) -> None:
    """Raise ConfigError if dlt is configured to stage the rows of all datasets in one schema.

    The lock covers one dataset, so two runs could stage there at once, and one would merge the rows of the other.
    """
    try:
        layout = destination_config(pipeline).staging_dataset_name_layout
    except ConfigurationException:  # whoever connects is told what is missing
        return
    if "%s" not in layout:
        raise ConfigError(
            f"dlt's configuration has staging_dataset_name_layout = {layout!r} without %s, so that two datasets would "
            f'stage their rows in the same tables, and load each other\'s; write "%s_{layout}".'
        )


def _check_single_dataset(pipeline: Pipeline) -> None:
    """Raise ConfigError if dlt is configured to load the schemas of a pipeline into datasets of their own.

    The ledger, the lock and the rows would be in two datasets, as soon as another schema is the pipeline's default.
    """
    if not pipeline.config.use_single_dataset:
        raise ConfigError(
            "dlt's configuration has use_single_dataset = false, so the connector's tables may be loaded into another "
            f"dataset than {pipeline.dataset_name!r}, with which a run is compared; remove it, or set "
            f"use_single_dataset = true under [pipelines.{pipeline.pipeline_name}] for this pipeline alone."
        )


def check_proven(kind: str, name: str, *, experimental: bool) -> None:
    """Raise ConfigError for a kind of destination that can lose a row, or that is not proven to lose none."""
    if kind in PROVEN:
        return
    why = next((f", {why}" for why, kinds in _REFUSED.items() if kind in kinds), "")
    if experimental and not why:
        return
    if kind in _EXPERIMENTAL:
        why = (
            ", because it has not been proven there that no row is missing (allow_experimental = true under "
            "[sources.importer] allows it anyway)"
        )
    raise ConfigError(
        f"The destination {name!r} is not supported{why}; use {', '.join(PROVEN)}, or a name that you gave one "
        f"with destination_type under [destination.{name}] in .dlt/config.toml."
    )


def _check_lake(pipeline: Pipeline, *, experimental: bool) -> None:
    """Raise ConfigError for a DuckLake with a catalog that admits only one process, or of an untested kind."""
    untyped: Any = pipeline  # the destination may be None, and is not typed so
    catalog = lake_catalog(pipeline)
    if catalog is None:
        return
    if catalog.drivername not in ("sqlite", "postgres", "postgresql", "mysql"):
        raise ConfigError(
            f"The catalog of this DuckLake is in {catalog.drivername}, which does not let two connections in; use "
            "ducklake:sqlite:///dir/catalog.sqlite or ducklake:postgresql://user@host/database?data=/dir."
        )
    if experimental:
        return
    if str(untyped.destination.destination_type).startswith("dlt."):
        raise ConfigError(
            "The destination ducklake, as dlt makes it, writes few rows into its catalog, and PostgreSQL takes no wide "
            "ones; use --to ducklake:…, which does not, or allow_experimental = true under [sources.importer]."
        )
    if catalog.drivername == "mysql" or lake_files(pipeline) is None:
        raise ConfigError(
            "Nobody has proven that no row is missing in a DuckLake whose catalog is not in SQLite or PostgreSQL, or "
            "whose files are not in a folder (allow_experimental = true under [sources.importer] lets runs load there "
            "all the same)."
        )


def check_writable(pipeline: Pipeline, *, experimental: bool = False) -> None:
    """Raise ConfigError if loading is not possible, or not without loss, e.g. PostgreSQL without ADBC.

    Without Parquet, dlt loads Arrow tables by way of CSV, which cannot tell an empty text from null
    (`dlt.destinations._adbc_jobs._loader_file_format_selector` decides by what is installed).
    """
    check_supported(pipeline)
    check_proven(destination_type(pipeline), destination_name(pipeline), experimental=experimental)
    _check_normalizer(pipeline)
    _check_writer(pipeline)
    _check_staging(pipeline)
    _check_single_dataset(pipeline)
    _check_lake(pipeline, experimental=experimental)
    file, dataset = duckdb_file(pipeline), pipeline.dataset_name
    if file is not None and file.name.partition(".")[0].lower() == dataset.lower():
        raise ConfigError(
            f"DuckDB cannot tell the dataset {dataset!r} from the file {file.name}, because it gives both the same "
            "name; rename one of them."
        )
    if lake_place(pipeline) is not None and dataset.lower() in _OF_DUCKDB:
        raise ConfigError(f"DuckDB, which writes the files, uses the name {dataset!r} itself; rename the dataset.")
    untyped: Any = pipeline  # most of what it and its destination have may be None, and is not typed so
    if untyped.staging is not None:
        return
    able = untyped.destination.capabilities()
    formats: Sequence[str] = able.supported_loader_file_formats or ()
    if able.loader_file_format_selector is not None:
        _, formats = able.loader_file_format_selector("parquet", list(formats), table_schema={"name": RECORDS})
    if "parquet" not in formats:
        fix = (
            "install its drivers: pip install 'importer-connector[postgres]'"
            if destination_type(pipeline) == "postgres"
            else "install the ADBC driver that dlt's documentation names for it, or use another destination"
        )
        raise ConfigError(
            f"The destination {destination_name(pipeline)!r} cannot load Parquet here, and without it empty texts "
            f"would become null; {fix}."
        )
