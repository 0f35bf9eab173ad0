"""A connection that is closed leaves nothing behind: no container of the broker is longer after a thousand of them.

The broker runs in one thread under a clock that stands still unless it is moved, so that nothing differs between two looks but
what connections did. Each is closed in the middle of something else: a held pull, a producer and a consumer with a
heartbeat, a prepared transaction, half of a frame, an answer that is not taken.
"""

import gc
import json
import types
from collections import Counter, deque
from collections.abc import Callable, Sized
from typing import Any, Final

import pytest
from tests.simulation.world import DATA, HandClock, Life, Peer
from tests.support.faulty_disk import FaultyDisk, FaultyFile
from tests.support.page_cache import CachedFile
from tests.support.raw_client import command, pull_ext, send_ext

from halfmq.broker.broker import Broker
from halfmq.broker.config import BrokerConfig
from halfmq.model.settings import BrokerSettings

#: The same clients come back again and again, as after a network that fails.
CLIENTS: Final = 3
ROUNDS: Final = 20
#: Longer than the broker remembers anything of a client: deduplication and silence, ms.
FORGOTTEN_MS: Final = 400_000
#: Traffic is kept by minutes and hours: after a day there is as much of it as ever.
A_DAY_MS: Final = 25 * 3_600_000

_CONTAINERS = (dict, list, set, deque, bytearray)
#: What leads out of the broker: code, the interpreter's own tables, and the test itself.
_NOT_ITS_OWN = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.CodeType,
    types.FrameType,
    FaultyDisk,
    FaultyFile,
    CachedFile,
    Peer,
)


class _Client:
    def __init__(self, life: Life, number: int) -> None:
        self.life = life
        self.name = f"client-{number}"
        self.peer = life.connect()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        opaque = self.peer.send(code, ext, body)
        self.life.settle()
        assert self.peer.answers.pop(opaque).code in (0, 19), code

    def close(self) -> None:
        self.peer.protocol.connection_lost(None)
        self.life.settle()


def heartbeat(client: _Client) -> None:
    subscription = {
        "topic": "T",
        "subString": "*",
        "tagsSet": [],
        "codeSet": [],
        "subVersion": 1,
        "expressionType": "TAG",
    }
    consumer = {
        "groupName": "readers", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False, "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {
        "clientID": client.name,
        "producerDataSet": [{"groupName": "service"}],
        "consumerDataSet": [consumer],
    }
    client.ask(34, {}, json.dumps(body).encode())


def parked_pull(client: _Client) -> None:
    client.peer.send(11, pull_ext("T", "readers", 0, 1_000_000, wait_ms=15_000))
    client.life.settle()


def send(client: _Client) -> None:
    client.ask(310, send_ext("T", "service", 0, {"UNIQ_KEY": client.name}), b"x")


def prepare(client: _Client) -> None:
    """The producer is gone before it says what becomes of its transaction, and is asked on the connection after this one."""
    heartbeat(client)
    pairs = {"TRAN_MSG": "true", "UNIQ_KEY": f"tx-{client.name}", "PGROUP": "service"}
    client.ask(310, send_ext("T", "service", 0, pairs, sys_flag=4), b"x")


def ask_and_do_not_wait(client: _Client) -> None:
    client.peer.send(310, send_ext("T", "service", 0, {"UNIQ_KEY": client.name}), b"x")


def half_of_a_frame(client: _Client) -> None:
    data = command(310, 1, send_ext("T", "service", 0, {"UNIQ_KEY": client.name}), bytes(50_000))
    client.peer.protocol.data_received(data[:30_000])
    client.life.settle()


def answers_not_taken(client: _Client) -> None:
    client.peer.protocol.pause_writing()
    client.peer.send(11, pull_ext("T", "readers", 0, 0))
    client.life.settle()


ACTS: Final[tuple[Callable[[_Client], None], ...]] = (
    heartbeat, parked_pull, send, prepare, ask_and_do_not_wait, half_of_a_frame, answers_not_taken,
)  # fmt: skip


def started() -> Life:
    config = BrokerConfig(
        data=DATA, port=0, name_port=0, segment_bytes=1 << 20, disk_reserve_bytes=0, checkpoint_interval_ms=1_000,
        settings=BrokerSettings(check_immunity_ms=500, check_interval_ms=1_000),
    )  # fmt: skip
    life = Life(FaultyDisk(1), HandClock(), 1, config)
    life.start()
    life.settle()
    first = _Client(life, 0)
    first.ask(
        17, {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    )
    first.close()
    for _ in range(A_DAY_MS // 60_000):
        pass_time(life, 60_000)
    return life


def a_round(life: Life, act: Callable[[_Client], None], number: int) -> None:
    client = _Client(life, number % CLIENTS)
    act(client)
    client.close()


def pass_time(life: Life, span_ms: int) -> None:
    life.loop._clock.now_ms += span_ms
    life.settle()


def forget(life: Life) -> None:
    for _ in range(FORGOTTEN_MS // 5_000):
        pass_time(life, 5_000)


def lengths(life: Life) -> Counter[str]:
    """How long each container is that the broker leads to, summed by whose attribute it is."""
    found: Counter[str] = Counter()
    known: set[int] = set()
    waiting: list[tuple[str, Any]] = [("broker", life.broker)]
    while waiting:
        name, one = waiting.pop()
        if id(one) in known or isinstance(one, _NOT_ITS_OWN):
            continue
        known.add(id(one))
        if isinstance(one, _CONTAINERS):
            found[name] += len(one)
        waiting += [(_named(name, one, other), other) for other in gc.get_referents(one)]
    return found


def _named(name: str, one: object, other: object) -> str:
    """Of what ``one`` leads to: a container keeps the name of where it was found, an object gives its own."""
    if isinstance(one, (*_CONTAINERS, tuple)) or type(one).__module__ == "builtins":
        return name
    attribute = next((key for key in _attributes(one) if getattr(one, key, None) is other), "")
    return f"{type(one).__name__}.{attribute}" if isinstance(other, Sized) else type(other).__name__


def _attributes(one: object) -> list[str]:
    slots = [name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
    return [*getattr(one, "__dict__", ()), *slots]


def grown(life: Life, act: Callable[[_Client], None]) -> dict[str, int]:
    """By how much each container grew over as many connections again."""
    looks = []
    for _ in range(3):  # the first is to know everybody
        for number in range(ROUNDS * CLIENTS):
            a_round(life, act, number)
        forget(life)
        gc.collect()
        looks.append(lengths(life))
    assert len(looks[-1]) > 100, "it looks at next to nothing"
    return {name: length - looks[1][name] for name, length in looks[2].items() if length > looks[1][name]}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_nothing_grows_with_the_connections_that_were_closed(act: Callable[[_Client], None]) -> None:
    assert grown(started(), act) == {}


def test_an_entry_that_is_kept_for_each_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, str] = {}
    closed = Broker._peer_gone

    def keeps(self: Broker, number: int) -> None:
        self.kept = kept  # type: ignore[attr-defined]
        kept[number] = "gone"
        closed(self, number)

    monkeypatch.setattr(Broker, "_peer_gone", keeps)
    assert set(grown(started(), send).values()) == {ROUNDS * CLIENTS}
