"""Who looks for a planted bug, in order: all fast tests, then the simulation and its profiles."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]


class Caught(NamedTuple):
    """``by``: the command or test. ``after``: how many seeds it took; 0: not counted in seeds. ``says``: its first words."""

    by: str
    after: int
    says: str


#: Looks with the planted package on the path: (directory of ``halfmq``'s parent, the planted file, first seed, seeds) -> what it caught.
Hunter = Callable[[Path, str, int, int], Caught | None]

_LINE_MAX: Final = 110


def run(source: Path, arguments: list[str], timeout_s: float) -> tuple[int, str, str]:
    """(exit code, output, errors) of ``python -m ...`` that imports halfmq from ``source``; 124 when time was up."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return 124, "", f"no end after {late.timeout:.0f} s"
    return done.returncode, done.stdout, done.stderr


def by_simulation(source: Path, file: str, first: int, seeds: int, profile: str = "") -> Caught | None:
    """The whole world, seed by seed, until one is red."""
    code, text, errors = run(
        source,
        [
            "tests.simulation",
            "--first",
            str(first),
            "--seeds",
            str(seeds),
            "--until-red",
            "--json",
            "--profile",
            profile,
        ],
        60 + seeds * 3,
    )
    if code == 0:
        return None
    try:
        last = json.loads(text.strip().splitlines()[-1])
        return Caught(f"{profile} simulation".strip(), int(last["seed"]) - first + 1, _cut(str(last["violation"])))
    except (ValueError, KeyError, IndexError):
        raise RuntimeError(
            f"the simulation ended with {code}, and without a result:\n{text[-1_000:]}{errors[-2_000:]}"
        ) from None


def by_crowded_simulation(source: Path, file: str, first: int, seeds: int) -> Caught | None:
    """Histories with many undecided transactions and little retention: larger ones, so fewer."""
    return by_simulation(source, file, first, max(1, seeds // 4), "crowded")


def by_power_loss(source: Path, file: str, first: int, seeds: int) -> Caught | None:
    """Histories in which the power is lost again and again."""
    return by_simulation(source, file, first, seeds, "power_loss")


def by_queries(source: Path, file: str, first: int, seeds: int) -> Caught | None:
    """Histories in which queries write half batches, which others do not have."""
    return by_simulation(source, file, first, max(1, seeds // 2), "queries")


def by_coordinators(source: Path, file: str, first: int, seeds: int) -> Caught | None:
    """Histories with processes of a coordinator, and with fences."""
    return by_simulation(source, file, first, max(1, seeds // 2), "coordinators")


def by_tests(source: Path, file: str, first: int, seeds: int) -> Caught | None:
    """All fast tests until one is red: first those of the planted file's package, then the others."""
    own = ROOT / "tests" / "unit" / file.split("/")[0]
    return (_by_pytest(source, str(own)) if own.is_dir() else None) or _by_pytest(source, "tests", f"--ignore={own}")


def _by_pytest(source: Path, *paths: str) -> Caught | None:
    options = ["-x", "-q", "-m", "not slow and not thorough", "-p", "no:cacheprovider", "--ignore=tests/mutation"]
    code, text, errors = run(source, ["pytest", *options, *paths], 900)
    if code == 0:
        return None
    text += errors
    found = re.search(r"^FAILED (\S+)(.*)$|^ERROR (\S+)(.*)$", text, re.MULTILINE)
    if found is None:
        return Caught("tests", 0, _cut(text.strip().splitlines()[-1] if text.strip() else f"exit code {code}"))
    return Caught(found[1] or found[3], 0, _cut((found[2] or found[4] or "").lstrip(" -")))


HUNTERS: Final[dict[str, Hunter]] = {
    "tests": by_tests, "simulation": by_simulation, "crowded": by_crowded_simulation, "power-loss": by_power_loss,
    "queries": by_queries, "coordinators": by_coordinators,
}  # fmt: skip


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LINE_MAX else text[: _LINE_MAX - 3] + "..."
