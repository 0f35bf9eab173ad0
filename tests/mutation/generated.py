"""Generated mutants: ``python -m tests.mutation.generated [PATTERN ...]``, or ``make mutants``.

mutmut changes the code of ``core/transaction`` and of recovery, one small thing at a time (a comparison, a number, an
argument, a text), and runs the unit tests that reach the changed function. What is changed and which tests count stands
in ``pyproject.toml`` under ``tool.mutmut``, why in ``docs/decisions/0024-mutation-testing.md``, and who may survive in
``survivors.md``. Without a pattern all of them, which takes hours; with ``halfmq.store.log_scan.*`` minutes. What was
tried stays in ``mutants/`` and is tried again only when its function or its tests have changed.

Exit code 0 only when at least 90% of those that pass the type checker are killed. ``--table`` tells what is known so far
and runs nothing.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[2]
#: Share of them that tests must notice.
KILLED_MIN: Final = 0.9
#: mutmut's words. A mutant that never ends is noticed, too.
KILLED, TIMEOUT, TYPES, UNKNOWN = "killed", "timeout", "caught by type check", "not checked"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated", description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="such as halfmq.store.log_scan.* (default: all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="tell what is known, run nothing")
    arguments = parser.parse_args()
    if importlib.util.find_spec("mutmut") is None:
        print(
            f"mutmut is not installed; get it with: {sys.executable} -m pip install --group mutation", file=sys.stderr
        )
        return 2
    if not arguments.table:
        _mutmut("run", "--max-children", str(arguments.processes), *arguments.patterns)
    result = _mutmut("results", "--all", "true", keep=True)
    figures, left = figures_of(result.splitlines(), arguments.patterns)
    if not figures:
        print("no mutant was tried", file=sys.stderr)
        return 2
    for name, status in left:
        print(f"{status}: {name}        python -m mutmut show {name}")
    total = sum(figures.values(), Counter())
    Console(width=100).print(_table({**figures, "all": total}))
    return 0 if killed_share(total) >= KILLED_MIN else 1


def figures_of(lines: Iterable[str], patterns: list[str]) -> tuple[dict[str, Counter[str]], list[tuple[str, str]]]:
    """How many mutants of each module had which fate; and those that nobody caught. From ``mutmut results --all true``."""
    figures: dict[str, Counter[str]] = defaultdict(Counter)
    left = []
    for line in lines:
        name, _, status = line.strip().rpartition(": ")
        if "__mutmut_" not in name or (patterns and not any(fnmatch(name, pattern) for pattern in patterns)):
            continue
        figures[name.rpartition(".x")[0]][status] += 1
        if status not in (KILLED, TIMEOUT, TYPES, UNKNOWN):
            left.append((name, status))
    return dict(figures), left


def killed_share(fates: Counter[str]) -> float:
    """Of those that the type checker lets pass; what was not tried yet does not count."""
    tried = fates.total() - fates[TYPES] - fates[UNKNOWN]
    return (fates[KILLED] + fates[TIMEOUT]) / tried if tried else 1.0


def _mutmut(*arguments: str, keep: bool = False) -> str:
    """Run it in the checkout, where it works in ``mutants/`` only. It finds ``python`` for the type checker on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments], cwd=ROOT, env={**os.environ, "PATH": path}, text=True,
        stdout=subprocess.PIPE if keep else None, check=False,
    )  # fmt: skip
    return done.stdout or ""


def _table(figures: dict[str, Counter[str]]) -> Table:
    table = Table(title="generated mutants")
    for heading in ("module", "mutants", "types", "tried", "killed", "timeout", "survived", "%"):
        table.add_column(heading, justify="left" if heading == "module" else "right", no_wrap=True)
    for module, fates in figures.items():
        tried = fates.total() - fates[TYPES] - fates[UNKNOWN]
        alive = tried - fates[KILLED] - fates[TIMEOUT]
        cells = (fates.total(), fates[TYPES], tried, fates[KILLED], fates[TIMEOUT], alive)
        table.add_row(module.removeprefix("halfmq."), *map(str, cells), f"{100 * killed_share(fates):.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
