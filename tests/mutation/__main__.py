"""Plant bugs, one at a time, and see who catches each: ``python -m tests.mutation [NAME ...] [--seeds N] [--first F]``.

The checkout is not touched: each bug goes into a copy of the package, which the tests then import. Exit code 0 only when
every plant was caught. ``--output FILE`` keeps the table as JSON. Bugs that a tool thinks of: ``generated.py``.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.mutation.hunters import HUNTERS, ROOT, Caught
from tests.mutation.plants import PLANTS, Plant, plant_into


def main() -> int:
    arguments = _arguments()
    unknown = set(arguments.names) - {plant.name for plant in PLANTS}
    if unknown:
        print(f"no such plant: {', '.join(sorted(unknown))}; see tests/mutation/plants.py", file=sys.stderr)
        return 2
    plants = [plant for plant in PLANTS if not arguments.names or plant.name in arguments.names]
    rows: list[dict[str, Any]] = []
    order = {plant.name: number for number, plant in enumerate(PLANTS)}
    console = Console()
    already = hunt(None, arguments.hunters, arguments.first, arguments.seeds, everybody=False)["caught"]
    if already:
        console.print(f"red without any plant, so nothing can be shown: {already[0]}", highlight=False)
        return 2
    with Progress(console=console) as progress, ThreadPoolExecutor(arguments.processes) as hunts:
        task = progress.add_task("plants", total=len(plants))
        running = [
            hunts.submit(
                hunt, plant, arguments.hunters, arguments.first, arguments.seeds, everybody=arguments.everybody
            )
            for plant in plants
        ]
        for done in as_completed(running):
            row = done.result()
            rows.append(row)
            rows.sort(key=lambda one: order[one["name"]])
            _keep(arguments.output, arguments, rows)
            what = row["caught"][0] if row["caught"] else None
            console.print(
                f"{row['name']}: {what['by'] if what else 'NOT CAUGHT'} ({row['seconds']} s)", highlight=False
            )
            progress.advance(task)
    console.print(_table(rows))
    caught = sum(bool(row["caught"]) for row in rows)
    by_simulation = sum(any(found["by"] == "simulation" for found in row["caught"]) for row in rows)
    console.print(f"{caught} of {len(rows)} planted bugs caught, {by_simulation} by simulation alone")
    return 0 if caught == len(rows) else 1


def hunt(plant: Plant | None, hunters: list[str], first: int, seeds: int, *, everybody: bool) -> dict[str, Any]:
    """Let each hunter look in turn, up to the first that catches it; all of them with ``everybody``.

    Without a plant: what they catch then is no catch.
    """
    began = time.monotonic()
    caught: list[Caught] = []
    with tempfile.TemporaryDirectory(prefix="halfmq-plant-") as directory:
        source = Path(directory)
        shutil.copytree(ROOT / "src", source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        if plant is not None:
            plant_into(source / "halfmq", plant)
        for name in hunters:
            found = HUNTERS[name](source, plant.file if plant is not None else "", first, seeds)
            if found is not None:
                caught.append(found)
                if not everybody:
                    break
    return {
        **(plant._asdict() if plant is not None else {}), "caught": [found._asdict() for found in caught],
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _keep(output: Path | None, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if output is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()  # fmt: skip
        record = {"commit": commit, "first": arguments.first, "seeds": arguments.seeds, "plants": rows}
        output.write_text(json.dumps(record, indent=1) + "\n")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="planted bugs")
    for heading in ("plant", "promise", "caught by", "seeds", "what it said"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        for found in row["caught"] or [{"by": "NOBODY", "after": "", "says": row["says"]}]:
            table.add_row(row["name"], str(row["promise"]), found["by"], str(found["after"] or ""), found["says"])
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="plant bugs and see who catches them")
    parser.add_argument("names", nargs="*", help="plants to try (default: all)")
    parser.add_argument("--seeds", type=int, default=300, help="seeds that a simulation may take for one plant")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--hunters", nargs="+", choices=list(HUNTERS), default=list(HUNTERS))
    parser.add_argument("--everybody", action="store_true", help="let all hunters look, also when one has caught it")
    parser.add_argument("--processes", type=int, default=2, help="plants that are tried at the same time")
    parser.add_argument("--output", type=Path, help="keep the table as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
