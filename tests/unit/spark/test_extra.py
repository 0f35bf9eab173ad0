"""The extra ``spark`` has what PySpark imports for the functions that its own extras and documents leave unsaid."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pyspark

_IMPORT: Final = re.compile(r"^\s*(?:from|import) (google\.protobuf|pandas|pyarrow|numpy)\b", re.MULTILINE)
#: Modules that run in drivers and workers of a session that is not one of Spark Connect.
_USED: Final = ("sql/streaming", "sql/pandas", "sql/datasource.py", "sql/worker", "worker.py")
_DISTRIBUTIONS: Final = {"google.protobuf": "protobuf"}


def test_extra_spark_has_what_streams_with_state_import() -> None:
    """``transformWithState`` imports pandas in the driver, and protobuf in each worker, where its absence is "exited unexpectedly"."""
    root = Path(pyspark.__file__).parent
    files = [
        file for name in _USED for file in ((root / name).rglob("*.py") if (root / name).is_dir() else [root / name])
    ]
    imported = {found for file in files for found in _IMPORT.findall(file.read_text())}
    assert "google.protobuf" in imported
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"[^A-Za-z0-9-]", one)[0] for one in project["optional-dependencies"]["spark"]}
    assert {_DISTRIBUTIONS.get(name, name) for name in imported} <= extra
