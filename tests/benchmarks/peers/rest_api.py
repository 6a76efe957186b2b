"""dlt's declarative `rest_api` source: as its documentation has it, with every knob turned that helps, or incremental.

argv: base_url token file.duckdb documented|tuned|incremental. The last one is tuned, and reads what was updated later.
"""

from __future__ import annotations

import os
import sys
from typing import Any

TUNED = {
    "EXTRACT__WORKERS": "16",
    "EXTRACT__MAX_PARALLEL_ITEMS": "32",
    "NORMALIZE__WORKERS": "2",
    "LOAD__WORKERS": "2",
    "DATA_WRITER__BUFFER_MAX_ITEMS": "20000",
    "DATA_WRITER__FILE_MAX_ITEMS": "50000",
    "EXTRACT__DATA_WRITER__DISABLE_COMPRESSION": "true",
    "NORMALIZE__DATA_WRITER__DISABLE_COMPRESSION": "true",
}


def specification(base_url: str, token: str, variant: str) -> Any:
    imports: dict[str, Any] = {"path": "imports", "data_selector": "data"}
    if variant == "incremental":
        imports["incremental"] = {"cursor_path": "updated_at", "initial_value": "1970-01-01T00:00:00Z"}
    return {
        "client": {
            "base_url": f"{base_url}/api/v1/",
            "auth": {"type": "bearer", "token": token},
            "paginator": {"type": "page_number", "base_page": 1, "total_path": None, "stop_after_empty_page": True},
        },
        "resource_defaults": {
            "primary_key": "slug",
            "write_disposition": "merge",
            "endpoint": {"params": {"per_page": 100}},
        },
        "resources": [
            {"name": "imports", "endpoint": imports},
            {
                "name": "records",
                "parallelized": variant != "documented",
                "include_from_parent": ["slug"],
                "endpoint": {"path": "imports/{resources.imports.slug}/records", "data_selector": "data"},
            },
        ],
    }


def main() -> None:
    base_url, token, file, variant = sys.argv[1:5]
    tuned = variant != "documented"
    if tuned:
        os.environ.update(TUNED)  # before dlt reads them
    import dlt
    from dlt.sources.rest_api import rest_api_source

    knobs: dict[str, Any] = {"parallelized": True, "max_table_nesting": 0} if tuned else {}
    source = rest_api_source(specification(base_url, token, variant), **knobs)
    pipeline = dlt.pipeline(
        f"importer_{variant}",
        destination=dlt.destinations.duckdb(file),
        dataset_name="importer",
        pipelines_dir=f"{file}.dlt",
    )
    file_format: Any = "parquet" if tuned else None
    pipeline.run(source, loader_file_format=file_format)


if __name__ == "__main__":
    main()
