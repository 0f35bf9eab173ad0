"""Every test runs in exactly one part of the suites, and docs/testing.md says in which."""

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests import run
from tests.run import PARTS, ROOT, Part
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "testing.md").read_text()


def covers(part: Part, file: str) -> bool:
    """The most specific path wins: a part that ignores a file does not run it."""
    if part.is_command or f"--ignore={file}" in part.run:
        return False
    return any(file == path or file.startswith(f"{path}/") for path in part.run)


def test_every_test_file_is_in_exactly_one_part() -> None:
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    files += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "packages").glob("*/tests/**/test_*.py"))]
    assert len(files) > 200
    found = {file: [part.name for part in PARTS if covers(part, file)] for file in files}
    assert {file: parts for file, parts in found.items() if len(parts) != 1} == {}


def test_the_page_has_a_row_for_each_part_with_its_files() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \|([^|]*)\|", PAGE, re.MULTILINE))
    for part in PARTS:
        named = [] if part.is_command else [path for path in part.run if not path.startswith("--")]
        named = [re.sub(r"^tests/unit/test_\w+\.py$", "tests/unit/test_*.py", path) for path in named]
        assert re.findall(r"`([^`]+)`", rows[part.name]) == list(dict.fromkeys(named)), part.name


def test_the_page_names_helpers_and_folders_that_exist() -> None:
    helpers = re.search(r"## Which helper do I take\n(.*)", PAGE, re.DOTALL)
    assert helpers
    support = ROOT / "tests" / "support"
    for name in re.findall(r"`([a-z_]+)(?:\.([A-Za-z_]+))?`", helpers[1]):
        module = support / f"{name[0]}.py"
        assert module.exists(), name
        assert name[1] in module.read_text(), name
    for folder in re.findall(r"`(tests/[a-z_/]+)`", PAGE):
        assert Path(ROOT, folder).exists(), folder


def command(name: str, program: str) -> Part:
    return Part(name, "", 1.0, (sys.executable, "-c", program), is_command=True)


@pytest.mark.slow
def test_what_is_red_is_reported_and_what_takes_too_long_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "OUTPUT", tmp_path)
    monkeypatch.setattr(run, "_PART_MAX_S", {"gate": 1})
    (tmp_path / "test_one.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\ndef test_out(): pytest.skip('no such server')\n"
    )
    parts = [
        command("good", "print('fine')"),
        command("bad", "print('so it is'); exit(3)"),
        command("endless", "import time; time.sleep(60)"),
    ]
    results = {one.part.name: one for one in run.run(parts, "gate", [], Console(quiet=True), 2)}
    assert {name: one.status for name, one in results.items()} == {"good": 0, "bad": 3, "endless": 124}
    assert run.shown_of(tmp_path / "bad.log") == "so it is"
    monkeypatch.setattr(run, "_PART_MAX_S", {"gate": 60})
    tested = Part("tested", "", 1.0, (str(tmp_path / "test_one.py"),))
    (found,) = run.run([tested], "gate", ["--rootdir", str(tmp_path), "-c", os.devnull], Console(quiet=True), 2)
    assert not found.is_green
    assert len(found.tests) == 3
    assert [name.rpartition("::")[2] for name in found.red] == ["test_bad"]
    assert found.skipped == {"no such server": 1}
    assert "test_good" not in run.shown_of(tmp_path / "tested.log")


@pytest.mark.slow
def test_an_interrupted_part_ends_its_fixtures_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "OUTPUT", tmp_path)
    (tmp_path / "test_server.py").write_text(
        "import subprocess, sys, time, pathlib, pytest\n"
        "here = pathlib.Path(__file__).parent\n"
        "@pytest.fixture\n"
        "def server():\n"
        "    sleeps = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    forgotten = subprocess.Popen(sleeps, start_new_session=True)\n"
        "    yield forgotten.pid\n"
        "    (here / 'ended').touch()\n"
        "def test_it(server):\n"
        # Here, since an interrupt before the fixture has yielded would end it there.
        "    (here / 'begun').write_text(str(server))\n"
        "    time.sleep(600)\n"
    )
    part = run.Running(
        Part("server", "", 1.0, (str(tmp_path / "test_server.py"),)),
        "gate",
        ["--rootdir", str(tmp_path), "-c", os.devnull],
    )
    begun = tmp_path / "begun"
    wait_until(lambda: begun.exists() and begun.read_text(), unless=part.process.poll)
    # A process that has just been started has no environment for a moment.
    wait_until(lambda: int(begun.read_text()) in run.descendants(part.tag), "the process is found")
    part.stop()
    assert (tmp_path / "ended").exists()
    wait_until(lambda: not run.descendants(part.tag), "everything it started is gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fast", "spark"], "not in this suite: spark"),
        (["fast", "nothing"], "no such part"),
        (["fast", "lint"], "another run"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    run.OUTPUT.mkdir(parents=True, exist_ok=True)
    with (run.OUTPUT / "lock").open("w") as lock:
        with contextlib.suppress(OSError):  # the suite in which this test runs has it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = subprocess.run([sys.executable, "-m", "tests.run", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
