"""What properties say, the same for the decision and for redo."""

import random

from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.message_facts import delay_of, half_facts, key_hash_of, pairs_of, tag_hash_of
from halfmq.model.properties import encode, find, to_dict


def test_pairs_follow_the_same_rules_as_find_and_to_dict_on_any_bytes() -> None:
    dice = random.Random(3)
    compared = 0
    for _ in range(3_000):
        raw = bytes(dice.choice(b"AB\x01\x01\x02\x02c") for _ in range(dice.randrange(14)))
        pairs = pairs_of(raw)
        assert {name.decode(): value.decode() for name, value in pairs.items() if name} == to_dict(raw)
        for name in ("A", "B", "AB", "c"):
            assert pairs.get(name.encode()) == find(raw, name), (raw, name)
            compared += 1
    assert compared


def test_half_facts_are_what_the_single_readings_say() -> None:
    for pairs in (
        {},
        {"TAGS": "TagA"},
        {"UNIQ_KEY": "U", "TAGS": "ü"},
        {"DELAY": "3"},
        {"TIMER_DELAY_MS": "9", "UNIQ_KEY": "U"},
    ):
        raw = encode(pairs)
        assert half_facts(pairs_of(raw)) == (tag_hash_of(raw), key_hash_of(raw), delay_of(raw))


def test_hashes_are_of_java_and_ours_and_zero_without_a_value() -> None:
    raw = encode({"TAGS": "TagA", "UNIQ_KEY": "U1"})
    assert (tag_hash_of(raw), key_hash_of(raw)) == (java_string_hash("TagA"), hash64(b"U1"))
    assert (tag_hash_of(b""), key_hash_of(b"")) == (0, 0)
