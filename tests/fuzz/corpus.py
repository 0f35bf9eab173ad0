"""Stored inputs: ``tests/fuzz/corpus/TARGET/NAME``. Each one once broke a promise, or reached what nothing else did."""

import hashlib
from pathlib import Path

from tests.fuzz.target import Target

FOLDER = Path(__file__).parent / "corpus"


def stored(target: Target) -> dict[str, bytes]:
    folder = FOLDER / target.name
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def keep(target: Target, data: bytes, why: str) -> Path:
    """Store an input; ``why`` becomes its name."""
    folder = FOLDER / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{why}-{hashlib.sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    return path


def pool(target: Target) -> list[bytes]:
    """Seeds and stored inputs: what mutation starts from."""
    return [*target.seeds(), *stored(target).values()]
