"""The record of all runs: one line of JSON per run, in a file in the repository.

A line states the seeds, the commit, how much happened in them, and what was found. ``next_seed`` is the first seed to run next.
To repeat a line, check out its commit and run ``python -m tests.simulation --brief --first F --seeds N`` with its ``first``
and ``histories``: the printed ``digest`` must be that of the line. The digest covers the trace hashes in chunks of
``chunks.CHUNK`` seeds from the first one on, so a part of a line has another; the number of processes does not matter.
A line whose commit ends in a plus ran on uncommitted code, and cannot be repeated.

``mended`` is added manually after a fix: {red seed: commit that fixed it}.

The coverage of all runs is in ``record_coverage.json``: cells of fault, state and recovery case, summed up over the runs since
that file began.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.simulation import coverage
from tests.simulation.chunks import Sum

RECORD = Path(__file__).with_name("record.jsonl")


def lines(path: Path = RECORD) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_seed(path: Path = RECORD) -> int:
    """The first seed after all lines of the record."""
    return max((line["first"] + line["histories"] for line in lines(path)), default=1)


def commit_now(root: Path = Path(__file__).parent) -> str:
    """The commit of the working tree of ``root`` (such as ``tests/simulation``), with a plus if its code differs.

    The record itself grows during a run. Of files that git does not track only Python files count as code.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    )
    status = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "--", "../../src", ".", ":!record*.json*"], cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    changed = [
        line for line in status.stdout.splitlines() if not line.startswith("??") or line.rstrip('"').endswith(".py")
    ]
    return commit.stdout.strip() + ("+" if changed else "")


def append(path: Path, first: int, commit: str, total: Sum) -> None:
    kinds = ("fault ", "look ", "knob ", "recovery ", "checker ")
    line = {
        "first": first,
        **total.figures(),
        "commit": commit,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "digest": total.digest.hexdigest(),
        "red_seeds": [result.seed for result in total.red],
        "counts": {name: count for name, count in sorted(total.counts.items()) if name.startswith(kinds)},
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    histories, cells = covered(path)
    cells.update({name: count for name, count in total.counts.items() if name.startswith("cover ")})
    text = json.dumps({"histories": histories + total.seeds, "cells": dict(sorted(cells.items()))}, indent=0)
    _coverage_file(path).write_text(text + "\n")


def covered(path: Path = RECORD) -> tuple[int, Counter[str]]:
    """(histories, number of occurrences of each coverage cell in them)."""
    file = _coverage_file(path)
    found = json.loads(file.read_text()) if file.exists() else {"histories": 0, "cells": {}}
    return found["histories"], Counter(found["cells"])


def _coverage_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}_coverage.json")


def summary(path: Path = RECORD) -> str:
    """The whole record in a few lines."""
    found = lines(path)
    if not found:
        return f"{path}: no line yet"
    counts: dict[str, int] = {}
    for line in found:
        for name, count in line["counts"].items():
            counts[name] = counts.get(name, 0) + count
    head = (
        f"{path.name}: {sum(line['histories'] for line in found):,} histories in {len(found)} runs, "
        f"{sum(line['events'] for line in found):,} events, {sum(line['faults'] for line in found):,} faults, "
        f"{_violations(found)}"
    )
    histories, cells = covered(path)
    return "\n".join(
        [
            head,
            *_remarks(found),
            *(f"{count:>14,}  {name}" for name, count in sorted(counts.items())),
            f"coverage of {histories:,} of them",
            coverage.table(cells),
            f"cells that are possible and empty: {', '.join(coverage.empty_cells(cells)) or 'none'}",
        ]
    )


def _violations(found: list[dict[str, Any]]) -> str:
    red = sum(line["violations"] for line in found)
    mended = red - sum(len(_not_mended(line)) for line in found)
    return f"{red} violations" + (f", {mended} of them mended since" if red else "")


def _not_mended(line: dict[str, Any]) -> list[int]:
    return [seed for seed in line["red_seeds"] if str(seed) not in line.get("mended", {})]


def _remarks(found: list[dict[str, Any]]) -> Iterator[str]:
    """What to know before repeating these lines."""
    for line in found:
        for seed in _not_mended(line):
            yield f"not mended: seed {seed} at {line['commit']}"
        if line["commit"].endswith("+"):
            last = line["first"] + line["histories"] - 1
            yield f"not repeatable: seeds {line['first']} to {last}, run at {line['commit']}: on changes that no commit has"
