"""Who is killed when: by the seed, and only somebody who is at work."""

import time
from pathlib import Path
from typing import Any

import pytest
from demo.chaos import BROKER, LOYALTY, ORDER_SERVICE, SPARK, Chaos, Kill
from demo.flight_recorder import Counter, FlightRecorder, Phase
from demo.order_service import recorder_path
from demo.processes import ProcessFailed
from demo.run import Run
from tests.support.waiting import wait_until


class Actor:
    """A child process without a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True
        self.starts = self.kills = 0

    def start(self) -> None:
        self.is_running = True
        self.starts += 1

    def kill(self) -> None:
        self.is_running = False
        self.kills += 1

    def require_running(self) -> None:
        if not self.is_running:
            raise ProcessFailed(self.name)


class Stage:
    def __init__(self, directory: Path, counts: dict[str, int], seed: int = 1, baskets: int = 1_000) -> None:
        self.run = Run(
            directory=str(directory), baskets=baskets, services=2, workers=4, seed=seed, url="", shop_db="", loyalty_db=""
        )  # fmt: skip
        self.recorders = [FlightRecorder(recorder_path(directory, index), 4) for index in range(2)]
        self.orders: list[Any] = [Actor("order-service-0"), Actor("order-service-1")]
        self.broker: Any = Actor("broker")
        self.loyalty: Any = Actor("loyalty-service")
        self.spark: Any = Actor("revenue-job")
        self.batches = 0
        self.seen: list[Kill] = []
        self.chaos = Chaos(
            self.run, self.orders, self.broker, self.loyalty, self.spark, lambda: self.batches, counts, time.monotonic(),
            self.seen.append,
        )  # fmt: skip

    def is_quiet_after_a_step(self) -> bool:
        self.chaos.step()
        return self.chaos.is_quiet

    def play(self) -> list[Kill]:
        """Orders trickle in until all are done."""
        done = 0
        while done < self.run.baskets // 2:
            done += 5
            for recorder, actor in zip(self.recorders, self.orders, strict=True):
                if actor.is_running:
                    recorder.set(Counter.ORDERS, done)
            self.batches += self.spark.is_running
            wait_until(self.is_quiet_after_a_step, "everything to run again")
        return self.seen


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses pass at once."""
    monkeypatch.setattr("demo.chaos.PAUSE_SECONDS_MAX", 0.0)
    monkeypatch.setattr("demo.chaos.DOWN_SECONDS", (0.0, 0.0))


def test_every_kill_happens_and_everybody_comes_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {ORDER_SERVICE: 5, BROKER: 2, LOYALTY: 1, SPARK: 2})
    kills = stage.play()
    assert sorted(kill.what for kill in kills) == sorted([ORDER_SERVICE] * 5 + [BROKER] * 2 + [LOYALTY] + [SPARK] * 2)
    assert stage.chaos.left == 0
    for actor in (*stage.orders, stage.broker, stage.loyalty, stage.spark):
        assert actor.is_running
        assert actor.starts == actor.kills


def test_same_seed_draws_the_same_kills(tmp_path: Path) -> None:
    def drawn(name: str, seed: int) -> list[tuple[str, str]]:
        directory = tmp_path / name
        directory.mkdir()
        return [(kill.what, kill.victim) for kill in Stage(directory, {ORDER_SERVICE: 6, BROKER: 3}, seed).play()]

    assert drawn("a", 7) == drawn("b", 7)
    assert drawn("c", 7) != drawn("d", 8)


def test_service_that_has_finished_is_not_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {ORDER_SERVICE: 4})
    stage.recorders[0].set(Counter.FINISHED, 1)
    assert {kill.victim for kill in stage.play()} == {"order-service-1"}


def test_nobody_is_killed_when_nobody_is_at_work(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {ORDER_SERVICE: 1, BROKER: 1})
    for recorder in stage.recorders:
        recorder.set(Counter.FINISHED, 1)
    assert stage.play() == []
    assert stage.chaos.left == 2


def test_open_transactions_of_a_dead_service_are_its_own_and_of_a_dead_broker_everybodys(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {ORDER_SERVICE: 1, BROKER: 1})
    for recorder in stage.recorders:
        for worker, phase in enumerate((Phase.LOCAL, Phase.SENDING, Phase.TELLING)):
            recorder.enter(worker, phase, 1)
    by_what = {kill.what: kill for kill in stage.play()}
    assert by_what[ORDER_SERVICE].open == 2
    assert by_what[ORDER_SERVICE].phases == {"local": 1, "sending": 1, "telling": 1}
    assert by_what[BROKER].open == 4


def test_process_that_ends_by_itself_fails_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {})
    stage.orders[1].is_running = False
    with pytest.raises(ProcessFailed, match="order-service-1"):
        stage.chaos.step()


def test_spark_job_is_killed_only_after_a_batch_of_its_present_life(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {SPARK: 1})
    stage.batches = -1_000_000
    assert stage.play() == []
    stage.batches = 0
    assert [kill.what for kill in stage.play()] == [SPARK]


def test_spark_job_is_killed_after_the_load_whatever_it_does(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {SPARK: 1})
    stage.batches = -1_000_000
    for recorder in stage.recorders:
        recorder.set(Counter.FINISHED, 1)
    assert [kill.what for kill in stage.play()] == [SPARK]
