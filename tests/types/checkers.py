"""Runs mypy and pyright as a user's editor or CI does, and returns the errors that they report.

pyright comes as basedpyright: its wheel contains the checker and Node, so that it needs no download when it runs, which the wheel of
pyright does. Its mode "standard" is pyright's default.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
#: mypy reads SQLAlchemy and the broker in a minute, and in seconds if it has read them before.
_CACHE: Final = ROOT / "build" / "types" / "mypy"
_MYPY_LINE: Final = re.compile(r"(?P<file>.+?):(?P<line>\d+): error: (?P<text>.*)")
#: Longest time of one run, seconds: much more than it takes on a busy machine.
_RUN_S: Final = 900


class Report(NamedTuple):
    """An error in a file."""

    file: Path
    line: int
    text: str


def mypy(files: list[Path], folder: Path, *, strict: bool = True) -> list[Report]:
    """Errors of ``mypy --strict``, without those of halfmq itself: it is installed, for a user. ``folder``: for its settings. Without
    ``strict``: functions without annotations are allowed, and checked."""
    settings = folder / "mypy.ini"
    options = {
        "strict": True,
        "follow_imports": "silent",
        "mypy_path": ROOT / "src",
    }
    lines = ["[mypy]", *(f"{name} = {value}" for name, value in options.items())]
    if not strict:  # for these files alone, so that what is read of libraries is the same
        for file in files:
            lines += [f"[mypy-{file.stem}]", "disallow_untyped_defs = False", "disallow_incomplete_defs = False"]
            lines += ["disallow_untyped_calls = False", "disallow_any_generics = False"]
    settings.write_text("\n".join(lines))
    command = [_program("mypy"), "--config-file", str(settings), "--cache-dir", str(_CACHE)]
    found = _run([*command, "--no-error-summary", *map(str, files)])
    return [
        Report((ROOT / match["file"]).resolve(), int(match["line"]), match["text"])
        for match in map(_MYPY_LINE.fullmatch, found.splitlines())
        if match
    ]


def pyright(files: list[Path], folder: Path) -> list[Report]:
    """Errors of pyright in its mode "standard". ``folder``: for its settings."""
    settings = folder / "pyrightconfig.json"
    options = {
        "typeCheckingMode": "standard",
        "include": [str(file) for file in files],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        # The programs of the pages import each other by names that only their readers have.
        "reportMissingImports": "none",
    }
    settings.write_text(json.dumps(options))
    command = [_program("basedpyright"), "-p", str(settings), "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(_run(command))
    assert found["summary"]["filesAnalyzed"] >= len(files), found["summary"]
    return [
        Report(Path(one["file"]).resolve(), one["range"]["start"]["line"] + 1, one["message"])
        for one in found["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    assert path is not None, f"{name} is not installed: make setup"
    return path


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_RUN_S, check=False
    )
    # 1: errors were found. Anything else is no answer.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
