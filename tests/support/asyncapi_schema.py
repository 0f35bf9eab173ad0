"""The official JSON Schema of AsyncAPI 3.0.

``tests/vectors/asyncapi-3.0.0.json.xz`` is ``schemas/3.0.0-without-$id.json`` of the npm package ``@asyncapi/specs`` 6.11.1, compressed and
otherwise unchanged. Copyright 2016-2025 AsyncAPI Initiative, Apache License 2.0.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema

_FILE = Path(__file__).parents[1] / "vectors" / "asyncapi-3.0.0.json.xz"


@cache
def _validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(lzma.decompress(_FILE.read_bytes())))


def mistakes(document: dict[str, Any]) -> list[str]:
    """What is wrong with a document, including references within it that lead nowhere, which the schema does not see."""
    found = [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(document)]
    return found + [f"{one} leads nowhere" for one in _references(document) if not _leads_somewhere(document, one)]


def accepts(document: dict[str, Any], topic: str, message: str, body: Any) -> bool:
    """Whether the schema of a message of the document accepts a body."""
    payload = document["channels"][topic]["messages"][message]["payload"]
    whole = {"allOf": [payload], "components": document.get("components", {})}
    return bool(jsonschema.Draft7Validator(whole).is_valid(body))


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [one for part in value for one in _references(part)]
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [one for part in value.values() for one in _references(part)]
    return []


def _leads_somewhere(document: dict[str, Any], reference: str) -> bool:
    found: Any = document
    for part in unquote(reference).removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found is not None
