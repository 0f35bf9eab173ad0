"""``make demo``: real baskets through a database and the broker into Spark tables, under kill -9, reconciled to the cent."""

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from demo.data import BASKETS_IN_ALL
from demo.orchestra import Orchestra, Settings
from demo.plant import Plant
from demo.postgres_server import PostgresMissing
from demo.processes import ProcessFailed
from demo.progress import Progress
from demo.reconcile import save, show
from halfmq.errors import MissingDependency

ALL = "all"


def parse(arguments: list[str] | None = None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--baskets", default="20000", help=f"how many baskets, or '{ALL}' ({BASKETS_IN_ALL:,})")
    parser.add_argument("--db", default="sqlite", help="sqlite, postgres (starts one), or SHOP_URL,LOYALTY_URL")
    parser.add_argument("--services", type=int, default=2, help="order service processes")
    parser.add_argument("--workers", type=int, help="transactions of one service at once (sqlite 4, postgres 8)")
    parser.add_argument("--seed", type=int, default=3, help="when to kill whom")
    parser.add_argument("--order-kills", type=int, help="SIGKILLs of order services (5; all: 20)")
    parser.add_argument("--broker-kills", type=int, help="SIGKILLs of the broker (2; all: 5)")
    parser.add_argument("--loyalty-kills", type=int, default=1, help="SIGKILLs of the loyalty service")
    parser.add_argument("--spark-kills", type=int, help="SIGKILLs of the Spark job (1; all: 5)")
    parser.add_argument("--plant", choices=[*Plant], help="plant a fault; the exit status must then be 1")
    parser.add_argument("--without-spark", action="store_true", help="leave the Spark job out")
    parser.add_argument("--directory", type=Path, help="where to work and to leave the report (build/demo/...)")
    parser.add_argument("--keep", action="store_true", help="keep the store and Spark's checkpoint of a good run too")
    given = parser.parse_args(arguments)
    everything = given.baskets == ALL
    baskets = None if everything else _positive(parser, given.baskets)
    return Settings(
        directory=given.directory or Path("build/demo"),
        baskets=baskets,
        db=given.db,
        services=given.services,
        workers=given.workers or (4 if given.db == "sqlite" else 8),
        seed=given.seed,
        order_kills=_default(given.order_kills, 20 if everything else 5),
        broker_kills=_default(given.broker_kills, 5 if everything else 2),
        loyalty_kills=given.loyalty_kills,
        spark_kills=_default(given.spark_kills, 5 if everything else 1),
        with_spark=not given.without_spark,
        plant=Plant(given.plant) if given.plant else None,
        keep=given.keep,
    )


def _positive(parser: argparse.ArgumentParser, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        parser.error(f"--baskets is {text!r}: a whole number, or '{ALL}'")
    return min(int(text), BASKETS_IN_ALL)


def _default(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


def fresh_directory(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()


def main(arguments: list[str] | None = None) -> int:
    settings = parse(arguments)
    settings = replace(settings, directory=fresh_directory(settings.directory))
    # Not a terminal: a log, where a narrow table would be cut.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    try:
        if settings.with_spark:
            from halfmq.spark.java import find_java

            console.print(f"Java for Spark: {find_java().source}", highlight=False)
        with Progress(console, settings.baskets or BASKETS_IN_ALL, with_spark=settings.with_spark) as progress:
            outcome = Orchestra(settings, progress).play()
    except KeyboardInterrupt:
        console.print(f"interrupted; logs are in {settings.directory}", highlight=False)
        return 130
    except (ProcessFailed, MissingDependency, PostgresMissing) as error:
        console.print(f"[red]demo failed:[/] {error}", highlight=False)
        console.print(f"logs are in {settings.directory}", highlight=False)
        return 2
    from demo import report  # late: plotting takes seconds to load, and belongs to the end

    show(console, outcome.result)
    save(outcome.run, outcome.result)
    for line in report.summary(outcome):
        console.print(line, highlight=False)
    path = report.write(outcome)
    console.print(f"report: {path}", highlight=False)
    if settings.with_spark:
        console.print(f"report of halfmq pipeline: {settings.directory / 'jobs.html'}", highlight=False)
    if outcome.result.differences:
        return 1
    if not settings.keep:
        drop_bulk(settings.directory)
    return 0


#: What takes disk and says nothing any more once everything agrees; after a difference it is evidence.
BULK = ("store", "spark-local", "spark-checkpoint", "baskets.arrow")


def drop_bulk(directory: Path) -> None:
    for name in BULK:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
