"""dlt's declarative `rest_api` source: as its documentation has it, or with every knob turned that helps.

argv: base_url token file.duckdb documented|tuned
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


def specification(base_url: str, token: str, *, tuned: bool) -> Any:
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
            {"name": "imports", "endpoint": {"path": "imports", "data_selector": "data"}},
            {
                "name": "records",
                "parallelized": tuned,
                "include_from_parent": ["slug"],
                "endpoint": {"path": "imports/{resources.imports.slug}/records", "data_selector": "data"},
            },
        ],
    }


def main() -> None:
    base_url, token, file, variant = sys.argv[1:5]
    tuned = variant == "tuned"
    if tuned:
        os.environ.update(TUNED)  # before dlt reads them
    import dlt
    from dlt.sources.rest_api import rest_api_source

    knobs: dict[str, Any] = {"parallelized": True, "max_table_nesting": 0} if tuned else {}
    source = rest_api_source(specification(base_url, token, tuned=tuned), **knobs)
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
