"""`importer-sync compact`: rewrite the warehouse without what was deleted."""

from __future__ import annotations

import argparse

from connector.cli.configuration import open_pipeline, storage_version
from connector.cli.output import Output
from connector.cli.source_settings import settings_if_configured
from connector.maintain.compact import compact

EXAMPLES = ("importer-sync compact",)


def configure(_: argparse.ArgumentParser) -> None:
    """Add no options."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    # a program may have set `deletes` in its code, so the default is no reason to erase
    settings = settings_if_configured(arguments.pipeline_name)
    mirrors = settings is not None and "deletes" in settings.model_fields_set and settings.deletes == "mirror"
    done = compact(open_pipeline(arguments), mirrors=mirrors, storage=storage_version())
    output.document({"status": "succeeded", **done.as_json()})
    output.say(
        f"Compacted: {done.bytes_before / 1e6:,.1f} MB before, {done.bytes_after / 1e6:,.1f} MB after. Deleted rows "
        "are no longer in it, but backups may still have them."
    )
    return 0
