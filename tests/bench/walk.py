"""How far one half message, one commit and one pull go through the code: `python -m tests.bench.walk`.

Each is the request of a client that has sent others before, at durability `fsync`, on the thread of the broker's event loop, from the bytes
to the response. `calls`: calls of functions of halfmq; `files`: in how many files; `switches`: of two calls that follow each other, how
often the second is in another file; `returns`: how often a call goes back to a file that was left before and calls nobody any more.
`--path` prints the calls. Of several walks the one with the fewest calls counts: the others met a timer of the broker.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from tests.support.in_process import serving
from tests.support.raw_client import RawClient

import halfmq
from halfmq.store.store import Durability

_SOURCE = f"{Path(halfmq.__file__).parent}/"
_WARM = 40
_WALKS = 15


class Walk:
    """Calls while it is entered, as (file, function)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.returns = 0
        self._callers: list[str] = []

    def __enter__(self) -> "Walk":
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(_SOURCE):
            return
        file = path.removeprefix(_SOURCE)
        if event == "return":
            if self._callers:
                self._callers.pop()
            return
        left = {known for known, _ in self.calls}
        if file in left and file not in self._callers:
            self.returns += 1
        self._callers.append(file)
        self.calls.append((file, frame.f_code.co_qualname))

    def figures(self) -> dict[str, int]:
        files = [file for file, _ in self.calls]
        switches = sum(one != other for one, other in itertools.pairwise(files))
        return {"calls": len(files), "files": len(set(files)), "switches": switches, "returns": self.returns}


async def _walked(asked: Awaitable[Any]) -> Walk:
    with Walk() as walk:
        await asked
    return walk


async def measure() -> dict[str, Walk]:
    with tempfile.TemporaryDirectory() as made:
        async with serving(Path(made), segment_bytes=1 << 28, durability=Durability.FSYNC) as running:
            client: RawClient = await running.client()
            for number in range(_WARM):
                half = await client.half("T", b"body", unique=f"{number:032d}")
                assert (await client.end(half, f"{number:032d}", 8)).code == 0
            walks: dict[str, list[Walk]] = {"half": [], "commit": [], "pull": []}
            for number in range(_WARM, _WARM + _WALKS):
                unique = f"{number:032d}"
                asked = asyncio.ensure_future(client.half("T", b"body", unique=unique))
                walks["half"].append(await _walked(asked))
                walks["commit"].append(await _walked(client.end(asked.result(), unique, 8)))
                assert (await client.pull("T", number - 1)).code == 0
                walks["pull"].append(await _walked(client.pull("T", number)))
    return {name: min(of_it, key=lambda walk: len(walk.calls)) for name, of_it in walks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="store_true", help="print the calls too")
    arguments = parser.parse_args()
    # Headers without blanks, as RocketMQ's clients write them: a decoder of its own reads these.
    with mock.patch("json.dumps", partial(json.dumps, separators=(",", ":"))):
        walks = asyncio.run(measure())
    if arguments.path:
        for name, walk in walks.items():
            print(name, *(f"  {file} {function}" for file, function in walk.calls), sep="\n", file=sys.stderr)
    print(json.dumps({name: walk.figures() for name, walk in walks.items()}))


if __name__ == "__main__":
    main()
