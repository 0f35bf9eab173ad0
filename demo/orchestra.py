"""One whole run: start everybody, place orders under kills, let everything settle, reconcile.

prepare -> load under kills -> settle -> (plant) -> drain -> reconcile -> report
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, create_engine, func, select

from demo import data, loyalty_db, shop_db
from demo.chaos import BROKER, LOYALTY, ORDER_SERVICE, SPARK, Chaos, Kill
from demo.checkpoint import orders_read
from demo.flight_recorder import Counter, Snapshot
from demo.plant import NEED_HELD_OUT, Plant, choose_held_out, plant
from demo.postgres_server import PostgresServer
from demo.processes import BrokerProcess, Child, ProcessFailed, module
from demo.progress import Progress, Sample
from demo.reconcile import Result, reconcile
from demo.run import CHECK_IMMUNITY_MS, LOYALTY_TOPIC, ORDERS_TOPIC, Run
from demo.wire_view import count_visible
from halfmq import AsyncClient

#: After the last order: halves rest for the immunity, then checks go out; a broker that was killed late asks again.
SETTLE_SECONDS = 90.0
DRAIN_SECONDS = 180.0
TABLES_SECONDS = 600.0
#: Without any progress for this long, something hangs.
STALL_SECONDS = 120.0


@dataclass(frozen=True)
class Settings:
    directory: Path
    baskets: int | None
    db: str
    services: int
    workers: int
    seed: int
    order_kills: int
    broker_kills: int
    loyalty_kills: int
    spark_kills: int
    with_spark: bool
    plant: Plant | None
    keep: bool = False


@dataclass
class Outcome:
    run: Run
    settings: Settings
    kills: list[Kill]
    samples: list[Sample]
    services: list[Snapshot]
    broker_starts: list[float]
    markers: dict[str, int]
    load_seconds: float
    settle_seconds: float
    planted: str
    result: Result


@dataclass
class Orchestra:
    settings: Settings
    progress: Progress
    children: list[Child] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    _postgres: PostgresServer | None = None

    def play(self) -> Outcome:
        """Everything.

        Raises:
            ProcessFailed: a process ended by itself, or nothing moves any more.
        """
        try:
            return self._play()
        finally:
            for child in self.children:
                child.abandon()
            if self._postgres is not None:
                self._postgres.stop()

    def _play(self) -> Outcome:
        run = self._prepare()
        broker = self._broker
        chaos = self._chaos(run, broker)
        self._shop = shop_db.connect(run.shop_db)
        self._loyalty = shop_db.connect(run.loyalty_db)
        self._start_services(chaos)
        load_seconds = self._load(run, chaos)
        settled_from = time.monotonic()
        self._settle(run, chaos)
        settle_seconds = time.monotonic() - settled_from
        planted = ""
        if self.settings.plant is not None:
            planted = plant(run, self.settings.plant)
            self.progress.say(f"planted: {planted}")
        self._drain(run, chaos)
        if self.settings.with_spark:
            self._make_tables(run)
        self.progress.say("reconciling")
        result = reconcile(run, with_spark=self.settings.with_spark)
        outcome = Outcome(
            run, self.settings, chaos.kills, self.samples, chaos.snapshots(), broker.start_seconds,
            shop_db.count_markers(self._shop), load_seconds, settle_seconds, planted, result,
        )  # fmt: skip
        broker.stop()
        return outcome

    # --- prepare --------------------------------------------------------------------------------------------------

    def _prepare(self) -> Run:
        settings = self.settings
        directory = settings.directory
        self.progress.say(f"preparing baskets in {directory}")
        count = data.prepare(directory, settings.baskets)
        shop_url, loyalty_url = self._databases()
        shop_db.create(shop_url)
        loyalty_db.create(loyalty_url)
        self._broker = BrokerProcess(directory, CHECK_IMMUNITY_MS)
        self.children.append(self._broker)
        self._broker.start()
        held_out = choose_held_out(data.Source(directory)) if settings.plant in NEED_HELD_OUT else -1
        run = Run(
            directory=str(directory), baskets=count, services=settings.services, workers=settings.workers,
            seed=settings.seed, url=self._broker.url, shop_db=shop_url, loyalty_db=loyalty_url, held_out=held_out,
        )  # fmt: skip
        run.save()
        return run

    def _databases(self) -> tuple[str, str]:
        directory, db = self.settings.directory, self.settings.db
        if db == "sqlite":
            return shop_db.sqlite_url(directory / "shop.db"), shop_db.sqlite_url(directory / "loyalty.db")
        if db == "postgres":
            self._postgres = PostgresServer(settings={"fsync": "on"})
            self._postgres.start()
            names = ("shop", "loyalty")
            _create_databases(self._postgres.url("psycopg"), names)
            return self._postgres.url("psycopg", names[0]), self._postgres.url("psycopg", names[1])
        # A server of the user's: the two databases have to be there, named in one URL with a comma.
        shop_url, _, loyalty_url = db.partition(",")
        return shop_url, loyalty_url or shop_url

    def _chaos(self, run: Run, broker: BrokerProcess) -> Chaos:
        settings = self.settings
        orders = [
            Child(f"order-service-{index}", module("demo.order_service", run.path, str(index)), run.path)
            for index in range(run.services)
        ]
        loyalty = Child("loyalty-service", module("demo.loyalty_service", run.path), run.path)
        self._spark = Child("revenue-job", module("demo.revenue_job", run.path), run.path)
        self.children += [*orders, loyalty, self._spark]
        counts = {
            ORDER_SERVICE: settings.order_kills, BROKER: settings.broker_kills, LOYALTY: settings.loyalty_kills,
            SPARK: settings.spark_kills if settings.with_spark else 0,
        }  # fmt: skip
        spark = self._spark if settings.with_spark else None
        return Chaos(
            run, orders, broker, loyalty, spark, self._count_spark, counts, time.monotonic(), self.progress.killed
        )

    def _start_services(self, chaos: Chaos) -> None:
        if self.settings.with_spark:
            self._spark.start()
        for child in (chaos.loyalty, *chaos.orders):
            child.start()

    # --- load -----------------------------------------------------------------------------------------------------

    def _load(self, run: Run, chaos: Chaos) -> float:
        """Until every basket has a fate and every kill has happened. Seconds."""
        expected = run.baskets - (run.held_out >= 0)
        started = chaos.started_at = time.monotonic()
        with self._watching(run, chaos) as look:
            while True:
                chaos.step()
                snapshots = look()
                if (
                    all(one.counters[Counter.FINISHED] for one in snapshots)
                    and chaos.is_quiet
                    and not chaos.left_of_spark
                ):
                    break
                time.sleep(0.02)
        done = sum(one.done for one in chaos.snapshots())
        if done != expected:
            raise ProcessFailed(f"the services say they are finished with {done} of {expected} baskets")
        if chaos.left:
            raise ProcessFailed(f"{chaos.left} kills did not happen under load; use more baskets or fewer kills")
        return time.monotonic() - started

    @contextmanager
    def _watching(self, run: Run, chaos: Chaos) -> "Iterator[object]":
        """Samples twice a second into the progress bars and for the plots; raises when nothing moves any more."""
        last_sample = last_move = 0.0
        last_done = -1

        def look() -> list[Snapshot]:
            nonlocal last_sample, last_move, last_done
            snapshots = chaos.snapshots()
            now = time.monotonic()
            if now - last_sample >= 0.5:
                last_sample = now
                sample = self._sample(now - chaos.started_at, snapshots)
                self.samples.append(sample)
                self.progress.show(sample)
                done = sample.orders + sample.rejected + sample.loyalty + sample.spark
                if done != last_done:
                    last_done, last_move = done, now
                elif now - last_move > STALL_SECONDS:
                    raise ProcessFailed(f"nothing has moved for {STALL_SECONDS:.0f} s\n{chaos.orders[0].last_words()}")
            return snapshots

        yield look

    def _sample(self, seconds: float, snapshots: list[Snapshot]) -> Sample:
        orders = sum(one.counters[Counter.ORDERS] for one in snapshots)
        return Sample(
            seconds, orders, sum(one.done for one in snapshots) - orders, self._count_entries(), self._count_spark()
        )

    def _count_entries(self) -> int:
        with self._loyalty.connect() as connection:
            return connection.scalar(select(func.count()).select_from(loyalty_db.entries)) or 0

    def _count_spark(self) -> int:
        return orders_read(self.settings.directory)

    def _make_tables(self, run: Run) -> None:
        """``halfmq pipeline ingest``, ``transactions`` and ``reconcile``."""
        self.progress.say("halfmq pipeline: tables of topic and transactions, database against messages")
        job = Child("tables-job", module("demo.tables_job", run.path), run.path)
        self.children.append(job)
        job.start()
        until = time.monotonic() + TABLES_SECONDS
        while job.is_running:
            if time.monotonic() > until:
                raise ProcessFailed(f"the tables are not made in {TABLES_SECONDS:.0f} s\n{job.last_words()}")
            time.sleep(0.2)
        # Its status is 1 also if the reconciliation found differences, which is for the end to tell.
        if not (run.path / "reconcile.json").exists():
            raise ProcessFailed(f"the tables cannot be made\n{job.last_words()}")

    # --- settle and drain -----------------------------------------------------------------------------------------

    def _settle(self, run: Run, chaos: Chaos) -> None:
        """Until each order in the database is visible as a message; the services are alive to answer the checks.

        What should be invisible needs no waiting: it is so from the beginning. What is still different after
        ``SETTLE_SECONDS`` is left to the reconciliation to tell.
        """
        self.progress.say("load done; waiting for the checks to settle what the kills left open")
        until = time.monotonic() + SETTLE_SECONDS
        orders = shop_db.count_orders(self._shop)
        with self._watching(run, chaos) as look:
            while time.monotonic() < until:
                look()
                if asyncio.run(_visible(run.url)) == (orders, orders):
                    return
                time.sleep(0.25)
        self.progress.say("not everything was settled in time")

    def _drain(self, run: Run, chaos: Chaos) -> None:
        """Let the consumers read what is visible, then stop everybody but the broker."""
        self.progress.say("draining the consumers")
        for child in chaos.orders:
            child.stop()
        order_messages, loyalty_messages = asyncio.run(_visible(run.url))
        until = time.monotonic() + DRAIN_SECONDS

        def drained() -> bool:
            # A job that was just started again would end by the signal, with nothing read.
            has_revenue = not self.settings.with_spark or self._count_spark() >= order_messages
            return has_revenue and self._count_entries() >= loyalty_messages

        while not drained() and time.monotonic() < until:
            self.progress.show(self._sample(time.monotonic() - chaos.started_at, chaos.snapshots()))
            time.sleep(0.25)
        chaos.loyalty.stop()
        if self.settings.with_spark:
            self._spark.stop(DRAIN_SECONDS)
        sample = self._sample(time.monotonic() - chaos.started_at, chaos.snapshots())
        self.samples.append(sample)
        self.progress.show(sample)


async def _visible(url: str) -> tuple[int, int]:
    """Messages that consumers can see: of orders, of loyalty."""
    async with AsyncClient(url) as mq:
        return await count_visible(mq, ORDERS_TOPIC), await count_visible(mq, LOYALTY_TOPIC)


def _create_databases(url: str, names: tuple[str, ...]) -> None:
    engine: Engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for name in names:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
