"""The suites behind ``make test-fast``, ``make test`` and ``make test-all``: ``python -m tests.run {fast,gate,all} [PART ...]``.

A suite consists of parts (``PARTS``; docs/testing.md says what belongs where). A part is one process: pytest on some folders, or a command.
Parts run beside each other, begun in the order of the list, as many as the cores can serve: first what mostly waits (Spark, JVMs, killed
processes), then what computes, the longest first. Each writes to build/test/NAME.log. What was red is printed at the end, and then how long
each part took and which test was its slowest. Exit status: 0 all green, 1 something was red, 2 wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[1]
OUTPUT: Final = ROOT / "build" / "test"
#: Which tests a suite selects, as a marker expression of pytest.
SUITES: Final = {"fast": "not slow and not thorough", "gate": "not thorough", "all": ""}
#: A part that takes longer is stopped, and red. Seconds.
_PART_MAX_S: Final = {"fast": 600, "gate": 1_800, "all": 10_800}
#: How long histories of new seeds are simulated. Seconds.
_SIMULATION_S: Final = {"fast": 0, "gate": 10, "all": 600}
#: Parts also wait, so a core can serve a little more than one.
_LOAD_OF_A_CORE: Final = 1.5
#: How long an interrupted part may take to end what it started. Seconds.
_ENDS_WITHIN_S: Final = 20
#: Lines of a log that are shown of a red command.
_SHOWN_LINES_MAX: Final = 400
_NOTHING_SELECTED: Final = 5  # exit status of pytest


class Part(NamedTuple):
    """``load``: number of cores that it keeps busy. ``run``: folders and files for pytest, or a command. ``suites``: where it runs."""

    name: str
    what: str
    load: float
    run: tuple[str, ...]
    suites: tuple[str, ...] = ("fast", "gate", "all")
    is_command: bool = False


def _command(name: str, what: str, *words: str, suites: tuple[str, ...] = ("gate", "all")) -> Part:
    """``words[0]``: a program of this environment."""
    return Part(name, what, 1.0, (str(Path(sys.executable).with_name(words[0])), *words[1:]), suites, is_command=True)


_SLOW: Final = ("gate", "all")
PARTS: Final = (
    Part("spark", "Spark: batches, streams, sink, jobs", 1.0, ("tests/spark", "tests/compat/test_spark_rocketmq.py"), _SLOW),
    Part("broker", "the broker in the test's process", 0.5, ("tests/unit/broker", "tests/scenarios", "tests/peer_bugs")),
    Part(
        "kills", "processes of every kind under SIGKILL, with databases as the oracle, and under attack", 0.7,
        ("tests/soak", "tests/attack"),
    ),
    Part(
        "clients", "clients and brokers that we did not write", 0.5,
        ("tests/compat", "--ignore=tests/compat/test_spark_rocketmq.py"), _SLOW,
    ),
    Part("demo", "a run of the demo", 0.7, ("tests/demo",), _SLOW),
    Part("relay", "outbox and relay, to RabbitMQ, Apache Kafka, Apache RocketMQ; the examples", 0.7, ("tests/unit/relay", "tests/outbox")),
    Part("django", "Django: blocks on each database, and a project whose workers are killed", 0.7, ("tests/django",)),
    Part("faststream", "the broker of FastStream, a package of its own", 0.7, ("packages/faststream-halfmq/tests",)),
    Part("systems", "coordinator, TCC, compensation, damage: failure tables, and by chance", 0.7, ("tests/systems",)),
    _command("lint", "form of the code", "ruff", "check", ".", suites=("fast", "gate", "all")),
    _command("weaknesses", "known weaknesses in the code", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", "src", "examples",
             "packages/faststream-halfmq/src"),
    _command("format", "format of the code", "ruff", "format", "--check", "."),
    _command("layers", "imports between packages", "lint-imports", suites=("fast", "gate", "all")),
    _command("types", "types", "mypy"),
    Part("mistakes", "mistakes in the types of users' programs, planted for mypy and pyright; options", 1.0, ("tests/types",)),
    Part("documents", "programs, commands and quotations of the pages; the built package", 1.0, ("tests/documents",)),
    Part(
        "rest", "Spark's parts without Spark, histories, fuzz corpus, planted bugs, instructions, architecture", 1.0,
        ("tests/unit/spark", "tests/unit/testing", "tests/unit/runtime", "tests/unit/test_errors.py",
         "tests/unit/test_limits.py", "tests/unit/test_printable.py", "tests/fuzz", "tests/mutation", "tests/bench", "tests/architecture"),
    ),
    Part("simulation", "simulated histories of fixed seeds", 1.0, ("tests/simulation",)),
    Part("crashes", "a crash at each disk operation; power losses", 1.0, ("tests/crash_matrix", "tests/properties")),
    Part("core", "decisions, codecs, the store", 1.0, ("tests/unit/core", "tests/unit/model", "tests/unit/wire", "tests/unit/store")),
    Part(
        "client", "the client, the command line", 1.0,
        ("tests/unit/client", "tests/unit/cli", "tests/unit/demo", "tests/unit/bench"),
    ),
    Part("databases", "database transactions on SQLite, PostgreSQL and MariaDB", 0.7, ("tests/unit/sql",)),
    _command(
        "new histories", "simulated histories of new seeds", "python", "-m", "tests.simulation", "--new", "--brief",
        "--seconds", "{simulation_s}",
    ),
)  # fmt: skip


class Result(NamedTuple):
    part: Part
    seconds: float
    #: Of the part and of every process it waited for: who is left behind, or was started by a server, is not in it.
    cpu_seconds: float
    status: int
    #: Test -> seconds.
    tests: dict[str, float]
    red: list[str]
    #: Reason -> number of tests.
    skipped: dict[str, int]

    @property
    def is_green(self) -> bool:
        return self.status == 0


class Running:
    """A part in a process group of its own."""

    def __init__(self, part: Part, suite: str, options: Sequence[str]) -> None:
        self.part = part
        self.began = time.monotonic()
        self.cpu_seconds = 0.0
        self.limit_s = _PART_MAX_S[suite]
        self.log = OUTPUT / f"{part.name.replace(' ', '-')}.log"
        self.report = self.log.with_suffix(".xml")
        self.report.unlink(missing_ok=True)
        command = [word.format(simulation_s=_SIMULATION_S[suite]) for word in part.run]
        if not part.is_command:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--color=no",
                "-p",
                "no:cacheprovider",
                "-m",
                SUITES[suite],
                f"--junitxml={self.report}",
            ]
            command += [*options, *part.run]
        name = f"{os.getpid()}.{part.name}"
        self.tag = f"HALFMQ_TEST_PART={name}"
        environment = {**os.environ, "HALFMQ_TEST_SUITE": suite, "HALFMQ_TEST_PART": name}
        # Without bytecode on disk every process that a test starts compiles all it imports.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell starts what runs in its background so, and ``interrupt`` would do nothing: processes inherit it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def result(self) -> Result | None:
        """None while it runs."""
        status = self.poll()
        if status is None and self.seconds > self.limit_s:
            self.stop()
            with self.log.open("a") as output:
                output.write(f"\nstopped after {self.limit_s} s\n")
            status = 124
        if status is None:
            return None
        tests, red, skipped = read_report(self.report)
        if status == _NOTHING_SELECTED and not self.part.is_command:
            status = 0
        return Result(self.part, self.seconds, self.cpu_seconds, status, tests, red, skipped)

    def poll(self) -> int | None:
        """The exit status, None while it runs. ``Popen.poll`` would not tell the CPU time."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
        return self.process.returncode

    def interrupt(self) -> None:
        """As Ctrl-C: pytest ends its fixtures, and with them the servers and drivers that they started."""
        if self.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """``interrupt``; SIGKILL to what is left after 20 s, and to its descendants in sessions of their own."""
        self.interrupt()
        try:
            self.process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pid in descendants(self.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(tag: str) -> list[int]:
    """Processes whose environment has ``tag``; empty where there is no /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if tag.encode() in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def read_report(path: Path) -> tuple[dict[str, float], list[str], dict[str, int]]:
    """(seconds of each test, the red ones, reasons of skips with their number) of pytest's XML; empty if it was not written."""
    tests: dict[str, float] = {}
    red: list[str] = []
    skipped: dict[str, int] = {}
    if not path.exists():
        return tests, red, skipped
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        tests[name] = float(case.get("time", "0"))
        if case.find("failure") is not None or case.find("error") is not None:
            red.append(name)
        if (skip := case.find("skipped")) is not None:
            reason = skip.get("message") or ""
            skipped[reason] = skipped.get(reason, 0) + 1
    return tests, red, skipped


def run(parts: Sequence[Part], suite: str, options: Sequence[str], console: Console, cores: float) -> list[Result]:
    """Run all parts, at most ``cores`` times ``_LOAD_OF_A_CORE`` of load at once; each begins as soon as it fits."""
    waiting, running, results = list(parts), list[Running](), list[Result]()
    try:
        with console.status("") as status:
            while waiting or running:
                for part in list(waiting):
                    load = sum(one.part.load for one in running)
                    if not running or load + part.load <= cores * _LOAD_OF_A_CORE:
                        waiting.remove(part)
                        running.append(Running(part, suite, options))
                for one in list(running):
                    result = one.result()
                    if result is not None:
                        running.remove(one)
                        results.append(result)
                        console.print(line(result), highlight=False)
                status.update(
                    f"running: {', '.join(f'{one.part.name} {one.seconds:.0f} s' for one in running)}; {len(waiting)} parts wait"
                )
                time.sleep(0.1)
    finally:
        for one in running:
            one.interrupt()
        for one in running:
            one.stop()
    return results


def line(result: Result) -> str:
    count = f", {len(result.tests)} tests" if result.tests else ""
    left_out = f", {sum(result.skipped.values())} skipped" if result.skipped else ""
    return f"{'green' if result.is_green else 'RED  '}  {result.part.name}: {result.seconds:.0f} s{count}{left_out}"


def shown_of(log: Path) -> str:
    """What a red part said: of pytest its failures, of others the end."""
    text = log.read_text(errors="replace")
    found = [at for title in ("= ERRORS =", "= FAILURES =", "INTERNALERROR") if (at := text.find(title)) >= 0]
    if found:
        return text[text.rfind("\n", 0, min(found)) + 1 :]
    return "\n".join(text.splitlines()[-_SHOWN_LINES_MAX:])


def table(results: Sequence[Result], seconds: float) -> Table:
    made = Table(title=None, box=None, pad_edge=False)
    for heading in ("part", "", "seconds", "CPU s", "tests"):
        made.add_column(heading, justify="right" if heading in ("seconds", "CPU s", "tests") else "left")
    made.add_column("slowest test", overflow="fold")
    for result in sorted(results, key=lambda one: -one.seconds):
        slowest = max(result.tests, key=lambda name: result.tests[name], default="")
        said = f"{result.tests[slowest]:.1f} s {slowest}" if slowest else ""
        colour = "green" if result.is_green else "RED"
        took = (f"{result.seconds:.0f}", f"{result.cpu_seconds:.0f}", str(len(result.tests) or ""))
        made.add_row(result.part.name, colour, *took, said)
    cpu_seconds, tests = sum(one.cpu_seconds for one in results), sum(len(one.tests) for one in results)
    made.add_row("all", "", f"{seconds:.0f}", f"{cpu_seconds:.0f}", str(tests), "")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.run", description="run a suite of tests; see docs/testing.md"
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("parts", nargs="*", help=f"only these: {', '.join(part.name for part in PARTS)}")
    arguments, options = parser.parse_known_args()
    if unknown := set(arguments.parts) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if arguments.suite in part.suites]
    if arguments.parts:
        if absent := set(arguments.parts) - {part.name for part in parts}:
            parser.error(f"not in this suite: {', '.join(sorted(absent))}")
        parts = [part for part in parts if part.name in arguments.parts]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    lock = (OUTPUT / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        parser.error(
            f"another run in this checkout is using {OUTPUT.relative_to(ROOT)}: wait for it, or take another clone"
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 160)
    began = time.monotonic()
    try:
        results = run(parts, arguments.suite, options, console, os.cpu_count() or 1)
    except KeyboardInterrupt:
        console.print("interrupted", style=None)
        return 130
    if not any(result.tests or result.part.is_command or not result.is_green for result in results):
        console.print("no test was selected")
        return 2
    for result in results:
        if not result.is_green:
            log = OUTPUT / f"{result.part.name.replace(' ', '-')}.log"
            console.rule(f"{result.part.name} is red ({log.relative_to(ROOT)})")
            console.print(shown_of(log), markup=False, highlight=False)
    console.print(table(results, time.monotonic() - began))
    for reason in sorted({reason for result in results for reason in result.skipped}):
        console.print(
            f"{sum(result.skipped.get(reason, 0) for result in results)} skipped: {reason}",
            markup=False,
            highlight=False,
        )
    red = [result for result in results if not result.is_green]
    for result in red:
        console.print(
            f"RED: {result.part.name}: {', '.join(result.red) or f'exit status {result.status}'}",
            markup=False,
            highlight=False,
        )
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
