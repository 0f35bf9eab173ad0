"""Golden bytes from ``tests/vectors/*.txt``: ``name = hex``, or ``json.name = text``."""

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "vectors"


@cache
def vectors(file: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for line in (_FOLDER / f"{file}.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.partition(" = ")
        assert separator, f"a vector is malformed: {line[:60]}"
        assert name not in found, f"a vector stands there twice: {name}"
        found[name] = value.encode() if name.startswith("json.") else bytes.fromhex(value)
    return found
