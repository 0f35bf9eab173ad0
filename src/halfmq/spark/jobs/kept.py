"""Settings that the output of a job depends on, kept beside it: a later run must have the same."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from halfmq.errors import UsageError
from halfmq.spark.jobs.files import sync


def keep(output: Path, name: str, values: Mapping[str, Any]) -> None:
    """Write ``values`` into file ``name`` of the directory, which is created; or compare them with what a former run wrote there.

    Raises:
        UsageError: they differ, or the directory has other files and none of that name.
    """
    mine = json.loads(msgspec.json.encode(values))
    path = output / name
    if path.exists():
        known = json.loads(path.read_text())
        changed = [one for one in mine if known.get(one) != mine[one]]
        if changed:
            was = ", ".join(f"{one} was {known.get(one)!r}" for one in changed)
            raise UsageError(f"{output} was written with other settings: {was}", hint="use another directory")
        return
    if output.exists() and any(output.iterdir()):
        raise UsageError(f"{output} contains something else", hint="use an empty or new directory")
    output.mkdir(parents=True, exist_ok=True)
    replace(path, msgspec.json.format(msgspec.json.encode(mine)))


def replace(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old content or the new one, durably."""
    staged = path.with_name(f"{path.name}.new")
    staged.write_bytes(content)
    sync(staged)
    os.replace(staged, path)
    sync(path.parent)
