"""Ids are unique, readable by RocketMQ's tools, and never repeat when a clock is set back."""

import threading
from datetime import UTC, datetime

from tests.support.scripted_broker import Dice

from halfmq.client.unique_ids import UniqueIds
from halfmq.model.ids import is_transaction_id
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy


class Clock:
    def __init__(self, wall_ms: int = 1_795_000_000_000) -> None:
        self.wall = wall_ms
        self.monotonic = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


def test_message_id_has_rocketmqs_layout() -> None:
    clock = Clock()
    ids = UniqueIds(clock, Dice(), b"\x0a\x01\x02\x03", pid=0x12345)
    clock.monotonic += 250
    text = ids.message_id()
    raw = bytes.fromhex(text)
    assert text == text.upper()
    assert len(raw) == 16
    assert raw[:4] == b"\x0a\x01\x02\x03"
    assert raw[4:6] == b"\x23\x45"
    now = datetime.fromtimestamp((clock.wall + 250) / 1000, tz=UTC).astimezone()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert int.from_bytes(raw[10:14], "big") == int((now - month).total_seconds() * 1000)
    assert int.from_bytes(raw[14:], "big") == 1


def test_clock_set_back_repeats_nothing() -> None:
    clock = Clock()
    ids = UniqueIds(clock, Dice(), pid=1)
    made = []
    for _ in range(70_000):  # more than the 16-bit counter holds
        clock.wall -= 1
        clock.monotonic += 1
        made.append(ids.message_id())
    assert len(set(made)) == len(made)


def test_two_clients_of_one_process_differ() -> None:
    clock = Clock()
    one, two = UniqueIds(clock, Dice(1), pid=1), UniqueIds(clock, Dice(2), pid=1)
    assert one.message_id() != two.message_id()
    assert one.transaction_id() != two.transaction_id()


def test_transaction_ids_are_valid_and_unique_over_threads() -> None:
    ids = UniqueIds(Clock(), Dice(), b"\xff\xff\xff\xff", pid=4_194_304)
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend(ids.transaction_id() for _ in range(5_000))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 20_000
    assert all(is_transaction_id(text) for text in made)


def test_address_is_used_once_it_is_known() -> None:
    ids = UniqueIds(Clock(), Dice(), pid=1)
    ids.use_address(b"\x0a\x00\x00\x09")
    assert ids.message_id().startswith("0A000009")
    ids.use_address(bytes(12) + b"\x01\x02\x03\x04")
    assert ids.message_id().startswith("01020304")


def test_a_client_knows_its_own_transaction_ids_whatever_its_address() -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    one, other = UniqueIds(clock, entropy), UniqueIds(clock, entropy)
    before = one.transaction_id()
    one.use_address(b"\x0a\x01\x02\x03")
    assert one.is_own(before)
    assert one.is_own(one.transaction_id())
    assert not one.is_own(other.transaction_id())
    assert not one.is_own("order-7")
