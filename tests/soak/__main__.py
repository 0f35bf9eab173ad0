"""``python -m tests.soak --kills 1000 --seed S --directory DIR``: real processes, killed repeatedly, and compared.

It runs rounds of some kills each, and compares each on its own: the databases, the visible messages, the log. The record
grows line by line; the next run with the same record continues it. ``--profile kills``: only kills, in quick
succession. Exit status: 0 no difference, 1 a difference or a process that failed (the directory of its round is kept), 2
wrong usage.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demo.postgres_server import PostgresMissing, PostgresServer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.compat.toolchain import VERSIONS, client_classpath
from tests.soak.plan import Plan
from tests.soak.planted import BUGS
from tests.soak.processes import CHECKOUT, ProcessFailed
from tests.soak.profile import PROFILES
from tests.soak.record import Broken, Kill, Parked, Record, Round, Summary, read_lines
from tests.soak.round import Settings, run_round, save_differences
from tests.soak.small_disk import CannotMount, SmallDisk
from tests.support.ports import free_port

RECORD = "record.jsonl"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=1_000, help="so many in the record, those of earlier runs included"
    )
    parser.add_argument("--round-kills", type=int, default=50, help="kills between two checks")
    parser.add_argument(
        "--minutes", type=float, default=0, help="begin no more rounds and kill no more after this; 0: no end"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, required=True, help="for what a round needs")
    parser.add_argument("--record", type=Path, help="the record; else record.jsonl in the directory")
    parser.add_argument("--rate", type=float, default=180, help="transactions per second of all producers together")
    parser.add_argument("--retention", type=float, default=25, help="seconds after which the log is trimmed")
    parser.add_argument(
        "--no-disk-full", action="store_true", help="where nothing can be mounted: the disk is never full"
    )
    parser.add_argument("--no-java", action="store_true", help="where there is no JDK and Maven")
    parser.add_argument(
        "--keep", action="store_true", help="keep what the rounds leave, also of those without difference"
    )
    parser.add_argument("--profile", choices=PROFILES, default="everything", help="kills: nothing but kills, quickly")
    parser.add_argument("--bug", choices=BUGS, default="", help="plant a bug into the broker: the soak must go red")
    parser.add_argument("--set-aside", type=int, metavar="ROUND", help="do not count this round; nothing is run")
    parser.add_argument("--because", default="", help="why: the fault of the soak that made it red")
    asked = parser.parse_args()
    if asked.profile == "kills":
        asked.no_java = asked.no_disk_full = True
    if asked.set_aside is not None and not asked.because:
        parser.error("--set-aside needs --because")
    asked.record = (asked.record or asked.directory / RECORD).absolute()
    asked.record.parent.mkdir(parents=True, exist_ok=True)
    return asked


def main() -> int:
    asked = arguments()
    if asked.set_aside is not None:
        Record(asked.record).write(Parked(round=asked.set_aside, because=asked.because))
        show(Console(), Summary(read_lines(asked.record)))
        return 0
    # On SIGTERM it still ends all processes, and unmounts what it mounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    directory = asked.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    disk = None if asked.no_disk_full else SmallDisk(directory)
    # PostgreSQL's own programs and libpq read the port here; JDBC cannot use Unix sockets.
    port = free_port()
    os.environ["PGPORT"] = str(port)
    postgres = PostgresServer(settings={"listen_addresses": "127.0.0.1"})
    try:
        java = (
            {} if asked.no_java else {v: client_classpath(v, CHECKOUT / "tests/soak/java", "-soak") for v in VERSIONS}
        )
        if disk is not None:
            disk.mount()
        postgres.start()
        soak(asked, console, directory, disk, postgres, port, java)
    except (CannotMount, PostgresMissing, pytest.skip.Exception, pytest.fail.Exception) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 2
    except ProcessFailed as error:
        console.print(f"[red]{error}[/red]\nevidence: {directory}", highlight=False)
        return 1
    finally:
        postgres.stop()
        if disk is not None:
            disk.unmount()
    total = Summary(read_lines(asked.record))
    show(console, total)
    return 1 if total.differences else 0


def soak(
    asked: argparse.Namespace, console: Console, directory: Path, disk: SmallDisk | None, postgres: PostgresServer,
    port: int, java: dict[str, str],
) -> None:  # fmt: skip
    """Run rounds until the record has enough kills, the time is over, or a round has a difference."""
    deadline = time.monotonic() + asked.minutes * 60 if asked.minutes else float("inf")
    before = Summary(read_lines(asked.record))
    record = Record(asked.record)
    kills = len(before.kills)
    with Progress(
        TextColumn("kills"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    ) as bars:  # fmt: skip
        bar = bars.add_task("", total=asked.kills, completed=kills)
        number = before.next_round
        while kills < asked.kills and time.monotonic() < deadline - 20:

            def killed(kill: Kill, number: int = number) -> None:
                record.write(
                    Kill(**{field: getattr(kill, field) for field in kill.__struct_fields__} | {"round": number})
                )
                bars.update(
                    bar, advance=1, description=f"round {number}, load {kill.load}/s, undecided {kill.undecided}"
                )

            plan = make_plan(asked, directory, number, postgres, port)
            wanted = min(asked.round_kills, asked.kills - kills)
            settings = Settings(wanted, deadline, java, disk, commit())
            try:
                done = run_round(plan, number, settings, killed, lambda text: bars.console.print(text, highlight=False))
            except Exception as error:
                record.write(Broken(round=number, seed=str(plan.seed), commit=settings.commit, why=str(error)))
                raise
            record.write(done)
            kills += sum(done.kills.values())
            tell(bars.console, done)
            if done.differences:
                save_differences(plan, done.differences)
                return
            if not asked.keep:
                shutil.rmtree(plan.path, ignore_errors=True)
            number += 1


def make_plan(asked: argparse.Namespace, directory: Path, number: int, postgres: PostgresServer, port: int) -> Plan:
    path = directory / f"round-{number:03}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    database = f"soak_{number}"
    make_database(postgres, database)
    plan = Plan(
        directory=str(path), seed=asked.seed * 1_000_000 + number, broker_port=free_port(), name_port=free_port(),
        sqlite_url=f"sqlite:///{path / 'shop.db'}", postgres_url=postgres.url("psycopg", database),
        jdbc_url=f"jdbc:postgresql://127.0.0.1:{port}/{database}?user=postgres", rate=asked.rate, retention_s=asked.retention,
        patient_s=round(asked.retention * 1.3), bug=asked.bug,
        profile_name=asked.profile,
    )  # fmt: skip
    plan.save()
    return plan


def make_database(postgres: PostgresServer, name: str) -> None:
    import psycopg

    with psycopg.connect(host=str(postgres.directory), user="postgres", dbname="postgres", autocommit=True) as one:
        one.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        one.execute(f"CREATE DATABASE {name}")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def tell(console: Console, done: Round) -> None:
    orders = ", ".join(f"{group} {count:,}" for group, count in sorted(done.committed.items()))
    console.print(
        f"round {done.round}: {sum(done.kills.values())} kills {done.kills} in {done.seconds:.0f} s; committed {orders}; "
        f"rolled back {done.rolled_back:,}; {done.messages:,} messages; {len(done.differences)} differences",
        highlight=False,
    )  # fmt: skip
    for difference in done.differences[:20]:
        console.print(f"  [red]{difference}[/red]", highlight=False)


def show(console: Console, total: Summary) -> None:
    table = Table("killed", "kills", "with undecided", "load, tx/s: median (max)", "undecided: median (max)")
    for kind, count, *rest in total.rows():
        table.add_row(kind, str(count), *map(str, rest))
    console.print(table)
    committed = sum(sum(one.committed.values()) for one in total.rounds)
    rolled_back = sum(one.rolled_back for one in total.rounds)
    messages = sum(one.messages for one in total.rounds)
    seconds = sum(one.seconds for one in total.rounds)
    console.print(
        f"{len(total.kills):,} kills in {len(total.rounds)} rounds and {seconds / 60:,.0f} minutes: {committed:,} transactions "
        f"committed, {rolled_back:,} rolled back, {messages:,} messages, {total.differences} differences",
        highlight=False,
    )
    for one in total.set_aside:
        console.print(f"round {one.round} is parked: {one.because}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
