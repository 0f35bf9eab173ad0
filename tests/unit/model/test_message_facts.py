"""What properties say, the same for the decision and for redo."""

import random

import pytest

from halfmq.model import message_facts
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.message_facts import (
    HalfNotes,
    common_values,
    delay_of,
    half_facts,
    has_marker,
    key_hash_of,
    matters_to_a_send,
    notes_in,
    pairs_of,
    tag_hash_of,
)
from halfmq.model.properties import encode, to_dict


def test_a_learned_layout_reads_as_the_rules_say() -> None:
    rng = random.Random(5)
    for _ in range(12):
        names = [rng.choice(["A", "B", "A.", "KEYS", "TAGS"]) for _ in range(rng.randrange(1, 6))]
        for _ in range(300):
            pieces = [f"{name}\x01{rng.choice(['v', 'A', 'longer', '.', '', 'x' + chr(1) + 'y'])}" for name in names]
            if not rng.randrange(20):
                pieces.insert(rng.randrange(len(pieces)), rng.choice(["", "A", "\x01", "B\x01"]))
            raw = "\x02".join(pieces).encode() + rng.choice([b"", b"\x02", b"\x02\x02"])
            assert {name.decode(): value.decode() for name, value in pairs_of(raw).items() if name} == to_dict(raw)
    assert len(message_facts._layouts) == message_facts._LAYOUTS_MAX


@pytest.mark.parametrize("more", [[], ["x"], ["DELAY"], ["HMQ_TX_ID", "HMQ_TX_INDEX"], ["TRACE_ON"], ["KEYS"]])
def test_common_values_are_those_of_all_pairs_whether_the_layout_is_known_or_not(more: list[str]) -> None:
    rng = random.Random(7)
    message_facts._layouts.clear()
    for number in range(200):
        names = ["TRAN_MSG", "PGROUP", "UNIQ_KEY", "TAGS", "KEYS", *more]
        if number % 3:
            rng.shuffle(names)
            del names[rng.randrange(len(names)) :]
        raw = b"\x02".join([f"{name}\x01{rng.choice(['v', 'true', 'ü'])}{number}".encode() for name in names])
        rare, *values = common_values(raw)
        pairs = pairs_of(raw)
        assert values == [pairs.get(name, b"") for name in (b"TRAN_MSG", b"PGROUP", b"UNIQ_KEY", b"TAGS", b"KEYS")]
        assert rare == pairs or (rare == {} and set(names) <= {"TRAN_MSG", "PGROUP", "UNIQ_KEY", "TAGS", "KEYS", "x"})
    assert message_facts._layouts


def test_no_layout_is_kept_that_takes_much_memory() -> None:
    for names in (["n" * 2_000], [f"n{number}" for number in range(100)]):
        raw = encode(dict.fromkeys(names, "v"))
        for _ in range(200):
            assert len(pairs_of(raw)) == len(names)
    for kept, _, _ in message_facts._layouts:
        assert len(kept) <= 32
        assert sum(map(len, kept)) <= 1_024


def test_half_facts_are_what_the_single_readings_say() -> None:
    for pairs in (
        {},
        {"TAGS": "TagA"},
        {"UNIQ_KEY": "U", "TAGS": "ü"},
        {"DELAY": "3"},
        {"TIMER_DELAY_MS": "9", "UNIQ_KEY": "U"},
        {"HMQ_TX_ID": "T", "HMQ_TX_MARKER": "7.5"},
        {"HMQ_TX_MARKER": "7.5"},
        {"HMQ_TX_ID": "T"},
    ):
        raw = encode(pairs)
        tag_hash, key_hash, _, delay, _, _, marked = half_facts(common_values(raw))
        assert marked == has_marker(raw)
        assert (tag_hash, key_hash, delay) == (tag_hash_of(raw), key_hash_of(raw), delay_of(raw))


def test_hashes_are_of_java_and_ours_and_zero_without_a_value() -> None:
    raw = encode({"TAGS": "TagA", "UNIQ_KEY": "U1"})
    assert (tag_hash_of(raw), key_hash_of(raw)) == (java_string_hash("TagA"), hash64(b"U1"))
    assert (tag_hash_of(b""), key_hash_of(b"")) == (0, 0)


@pytest.mark.parametrize("name", [b"TRAN_MSG", b"DELAY", b"TIMER_DELIVER_MS", b"HMQ_TX_ID"])
def test_names_that_matter_to_a_send(name: bytes) -> None:
    assert matters_to_a_send([b"UNIQ_KEY", name])
    assert not matters_to_a_send([b"UNIQ_KEY", b"TAGS", b"KEYS", b"a"])


@pytest.mark.parametrize(
    ("pairs", "notes"),
    [
        ([("HMQ_TX_NAME", "n"), ("HMQ_ADVICE", "COMMIT"), ("HMQ_COMMENT", "Tür 7")], HalfNotes("n", "COMMIT", "Tür 7")),
        ([("HMQ_ADVICE", "ROLLBACK")], HalfNotes("", "ROLLBACK", "")),
        ([("HMQ_ADVICE", "COMMITS"), ("HMQ_COMMENTS", "x"), ("A", "HMQ_COMMENT")], HalfNotes()),
        ([("HMQ_ADVICE", "perhaps"), ("HMQ_COMMENT", "a"), ("HMQ_COMMENT", "b")], HalfNotes("", "", "b")),
        (
            [("HMQ_TX_NAME", "n" * 999), ("HMQ_COMMENT", "\U0001f600" * 999)],
            HalfNotes("n" * 255, "", "\U0001f600" * 200),
        ),
        ([("A", "x\x01HMQ_ADVICE\x01COMMIT"), ("XHMQ_ADVICE", "COMMIT")], HalfNotes()),
    ],
)
def test_notes_are_what_the_half_says_and_no_longer_than_is_shown(
    pairs: list[tuple[str, str]], notes: HalfNotes
) -> None:
    raw = encode(pairs)
    assert notes_in(raw) == notes
    assert notes_in(raw.removesuffix(b"\x02")) == notes
    assert notes_in(b"A\x01b\x02" + raw + b"Z\x01\xff\x02") == notes


def test_notes_of_bytes_that_are_no_text() -> None:
    assert notes_in(b"HMQ_COMMENT\x01\xff\xfe\x02").comment == "\ufffd\ufffd"
    assert notes_in(b"") == HalfNotes()
