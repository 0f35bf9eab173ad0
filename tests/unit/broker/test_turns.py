"""Long work of one request is cut into turns: others are served in between, and a peer that is gone ends it."""

from typing import Any

from tests.support.services import FakePeer, HandLoop
from tests.support.steps import result_of

from halfmq import limits
from halfmq.broker.turns import WAITING_MAX, Turns
from halfmq.core.decision import Refused, Why
from halfmq.model.steps import Steps


class Bench:
    def __init__(self) -> None:
        self.loop = HandLoop()
        self.now_s = 0.0
        self.seen: list[Any] = []
        self.flushes = 0
        self.turns = Turns(self.loop, lambda: self.now_s, self.flushed)  # type: ignore[arg-type]

    def flushed(self) -> None:
        self.flushes += 1

    def work(self, name: str, parts: int, error: Exception | None = None) -> Steps[str]:
        """Each part takes more than a turn."""
        for part in range(parts):
            self.seen.append((name, part))
            self.now_s += limits.INTAKE_TURN_S
            yield
        if error is not None:
            raise error
        return name

    def run(
        self,
        name: str,
        parts: int,
        peer: FakePeer | None = None,
        error: Exception | None = None,
        in_order: bool = False,
    ) -> Refused | None:
        return self.turns.run(
            peer or FakePeer(), 100, self.work(name, parts, error), self.seen.append, lambda error: self.seen.append(error),
            in_order=in_order,
        )  # fmt: skip

    def finish(self) -> None:
        while self.loop.turn():
            pass


def test_small_work_is_done_at_once() -> None:
    bench = Bench()
    assert bench.run("a", 0) is None
    assert (bench.seen, bench.turns.waiting, bench.flushes) == (["a"], 0, 0)


def test_work_of_several_requests_takes_turns_and_its_memory_is_given_back() -> None:
    bench, peer = Bench(), FakePeer()
    bench.run("a", 3, peer)
    bench.run("b", 2, peer)
    assert peer.kept == 200
    bench.finish()
    assert bench.seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), "b", "a"]
    assert (peer.kept, bench.turns.waiting, bench.flushes) == (0, 0, 2)


def test_what_work_raises_is_reported_and_others_go_on() -> None:
    bench, error = Bench(), ValueError("x")
    bench.run("a", 1, error=error)
    bench.run("b", 1)
    bench.finish()
    assert bench.seen == [("a", 0), ("b", 0), error, "b"]


def test_work_of_a_peer_that_is_gone_ends_without_an_answer() -> None:
    bench, gone = Bench(), FakePeer()
    bench.run("a", 5, gone)
    gone.is_open = False
    bench.finish()
    assert (bench.seen, gone.kept) == ([("a", 0)], 0)


def test_requests_after_one_that_is_in_order_wait_for_it_also_if_the_peer_is_gone() -> None:
    bench, peer = Bench(), FakePeer()
    bench.run("a", 2, peer, in_order=True)
    assert peer.holds == 1
    peer.is_open = False
    bench.finish()
    assert (bench.seen, peer.holds) == ([("a", 0), ("a", 1), "a"], 0)


def test_beyond_the_limit_nothing_is_begun() -> None:
    bench = Bench()
    users = [FakePeer(number, user=f"user-{number % 4}") for number in range(WAITING_MAX)]
    for user in users:
        assert bench.run("a", 2, user) is None
    refused = bench.run("b", 0, FakePeer(user="other"))
    assert refused == Refused(
        Why.NOT_NOW, "there are 256 of 256 requests that take long, 64 of them of user 'user-0': try again"
    )
    assert "b" not in bench.seen


def test_one_user_leaves_others_a_quarter_of_the_turns_over_all_its_connections() -> None:
    bench = Bench()
    for number in range(192):
        assert bench.run("flood", 2, FakePeer(number, user="flood")) is None
    refused = bench.run("flood", 0, FakePeer(200, user="flood"))
    assert refused == Refused(
        Why.NOT_NOW, "user 'flood' has 192 of 256 requests that take long, and one user may have 192: try again"
    )
    assert bench.run("shop", 1, FakePeer(201, user="shop")) is None
    bench.finish()
    assert bench.seen[-1] == "flood"
    assert bench.seen.count("shop") == 1
    assert bench.run("flood", 2, FakePeer(202, user="flood")) is None, "what is done counts no longer"
    assert bench.turns._shares.taken == 1


def test_the_result_without_interruption() -> None:
    assert result_of(Bench().work("a", 3)) == "a"
