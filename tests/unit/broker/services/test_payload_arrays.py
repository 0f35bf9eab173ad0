"""Verification with NumPy gives the answers of ``verify_payload``, or none; and it accepts what clients write."""

import builtins
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.payloads import verify_payload

from halfmq import limits
from halfmq.broker.services.payload_arrays import array_verification
from halfmq.model.half_batch import HalfMessage, Verified, build_payload
from halfmq.model.properties import encode

pytest.importorskip("numpy")
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
BODY_MAX = 500
NAMES = ("UNIQ_KEY", "TAGS", "KEYS", "MYKEYS", "a", "DELAY", "TRAN_MSG", "HMQ_TX_ID", "é")
VALUES = st.one_of(st.text("ab€1", min_size=1, max_size=4), st.sampled_from(["x" * 32, "y" * 32, "1"]))


def payload_of(messages: list[HalfMessage], queue: int = 1) -> bytes:
    return build_payload(messages, topic="orders", queue_id=queue, born_time_ms=5, born_host=HOST, store_host=HOST)[0]


def message(number: int, pairs: dict[str, str], end: bytes = b"\x02") -> HalfMessage:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()
    return HalfMessage(0, 0, b"body" * number, text + end if text else b"")


def answers(payload: bytes, count: int, **changes: Any) -> tuple[Verified | None, Verified | str]:
    """(with NumPy, message by message)."""
    values = {"topic": "orders", "queue_id": 1, "store_host": HOST, "body_bytes_max": BODY_MAX, **changes}
    fast = array_verification()
    assert fast is not None
    return fast(payload, count, *values.values()), verify_payload(payload, count, **values)


def assert_agree(payload: bytes, count: int, **changes: Any) -> bool:
    """Whether NumPy accepted it."""
    fast, slow = answers(payload, count, **changes)
    assert fast is None or fast == slow, (fast, slow)
    return fast is not None


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.sampled_from(NAMES), max_size=4, unique=True),
    st.lists(st.lists(VALUES, min_size=4, max_size=4), min_size=1, max_size=6),
    st.sampled_from([b"\x02", b""]),
)
def test_same_names_in_the_same_order(names: list[str], values: list[list[str]], end: bytes) -> None:
    messages = [message(n, dict(zip(names, row, strict=False)), end) for n, row in enumerate(values)]
    assert_agree(payload_of(messages), len(messages))


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), min_size=1, max_size=5))
def test_other_names_in_each_message(pairs: list[dict[str, str]]) -> None:
    assert_agree(payload_of([message(n, one) for n, one in enumerate(pairs)]), len(pairs))


@pytest.mark.parametrize("more", [{}, {"TAGS": "red"}, {"KEYS": "k1 k2", "a": "€"}])
def test_what_clients_write_is_accepted(more: dict[str, str]) -> None:
    messages = [message(n, {"UNIQ_KEY": f"{n * 7_919:032X}", **more}) for n in range(50)]
    assert assert_agree(payload_of(messages), 50)


def test_every_byte_of_an_id_counts() -> None:
    ids = ["".join(random.Random(n).choices("0123456789ABCDEF", k=32)) for n in range(60)]
    assert assert_agree(payload_of([message(1, {"UNIQ_KEY": one}) for one in ids]), 60)


@pytest.mark.parametrize(
    "texts",
    [
        [b"UNIQ_KEY\x01\x02"] * 2, [b"UNIQ_KEY\x01\x02", b"UNIQ_KEY\x01a\x02"], [b"a\x01\x02TAGS\x01\x02"] * 2,
        [b"a\x01x\x02", b"a\x01y", b"\x02a\x01z\x02"], [b"a\x01x\x02a\x01y\x02", b"a\x01z"], [b"\x02"] * 2, [b"a\x02"] * 2,
        [b"TAGS\x01a\x02TAGS\x01b\x02"] * 2, [b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02"] * 2, [b"\x01a\x02"] * 2,
        [b"UNIQ_KEY\x01" + b"a" * 65 + b"\x02"] * 2, [b"a\x01\xff\x02"] * 2, [b"a\x01b\x01c\x02"] * 2,
    ],
)  # fmt: skip
def test_odd_properties(texts: list[bytes]) -> None:
    assert_agree(payload_of([HalfMessage(0, 0, b"a", text) for text in texts]), len(texts))


def test_every_changed_byte_has_the_same_answer() -> None:
    payload = payload_of([message(n + 1, {"UNIQ_KEY": f"{n:032X}", "TAGS": "t", "KEYS": "k"}) for n in range(3)])
    accepted = 0
    for at in range(len(payload)):
        for bit in (0, 3, 7):
            changed = bytearray(payload)
            changed[at] ^= 1 << bit
            accepted += assert_agree(bytes(changed), 3)
    # What the sender chooses: flag, time and born host (20 bytes), two of the changed bits of the compression, two of the key.
    assert accepted == 3 * (3 * 20 + 2 + 2)


@pytest.mark.parametrize(
    "changes", [{"topic": "order"}, {"topic": "other1"}, {"topic": "t" * 200}, {"topic": "é"}, {"queue_id": 2},
                {"store_host": bytes(8)}, {"store_host": bytes(20)}, {"body_bytes_max": 3}]
)  # fmt: skip
def test_other_facts_are_not_accepted(changes: dict[str, Any]) -> None:
    payload = payload_of([message(1, {"UNIQ_KEY": "x" * 32})] * 2)
    assert not assert_agree(payload, 2, **changes)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31])
def test_wrong_number_of_messages(count: int) -> None:
    assert not assert_agree(payload_of([message(1, {"UNIQ_KEY": "x" * 32})] * 2), count)


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(-1, 4))
def test_random_bytes(payload: bytes, count: int) -> None:
    assert not assert_agree(payload, count)


def test_cut_and_extended_payloads() -> None:
    payload = payload_of([message(1, {"UNIQ_KEY": "x" * 32})] * 2)
    for cut in range(len(payload)):
        assert not assert_agree(payload[:cut], 2)
    assert not assert_agree(payload + bytes(20), 2)
    assert not assert_agree(payload + bytes(20), 3)


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert array_verification() is None


@pytest.mark.parametrize(("keys", "accepted"), [(8, True), (9, False)])
def test_more_keys_than_a_request_may_have_are_refused(keys: int, accepted: bool) -> None:
    """By both: with NumPy it is not accepted, and without it the refusal says why."""
    messages = [HalfMessage(0, 0, b"", encode({"KEYS": " ".join("k" * keys)}))] * (limits.REQUEST_KEYS_MAX // 8)
    fast, plain = answers(payload_of(messages), len(messages))
    assert (fast is not None, isinstance(plain, Verified)) == (accepted, accepted)
    assert accepted or "keys together" in plain  # type: ignore[operator]


@pytest.mark.parametrize(
    "tags", [[f"t{number}" for number in range(1_001)], ["t" * 30_000, "u" * 30_000, "v" * 30_000]]
)
def test_many_or_long_tags_are_left_to_the_verification_that_can_be_interrupted(tags: list[str]) -> None:
    messages = [HalfMessage(0, 0, b"", encode({"TAGS": tag})) for tag in tags]
    fast, plain = answers(payload_of(messages), len(messages))
    assert fast is None
    assert isinstance(plain, Verified)
