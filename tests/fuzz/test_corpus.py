"""Every stored input and some fresh ones hold every promise; planted bugs show that a promise can be seen to break."""

import random
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import pytest

from halfmq.broker.remoting.gateway import Connection
from halfmq.errors import StoreDamaged
from halfmq.model import half_batch, properties, stored_message
from halfmq.store import batch_codec, log_scan, two_slots
from halfmq.wire.remoting import binary_header, frame, half_batches, header, java_json
from tests.fuzz import corpus, half_batch_targets, store_targets
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target
from tests.fuzz.targets import ALL
from tests.support.payloads import verify_payload

EVERY = pytest.mark.parametrize("target", ALL.values(), ids=ALL.keys())


def held(target: Target, seed: int, count: int) -> None:
    mutator = Mutator(target, random.Random(seed), corpus.pool(target))
    for number in range(count):
        data = mutator.fresh()
        try:
            target.run(data)
        except BaseException as error:
            raise AssertionError(
                f"input {number} of seed {seed} breaks a promise of {target.name}: {error!r}; "
                f"python -m tests.fuzz {target.name} --blind --seed {seed} finds it again, this is it: {data[:2_000]!r}"
            ) from error


@EVERY
def test_seeds_and_stored_inputs_hold_every_promise(target: Target) -> None:
    pool = corpus.pool(target)
    assert pool
    for data in pool:
        target.run(data)


@EVERY
def test_fresh_inputs_hold_every_promise(target: Target) -> None:
    seed = random.SystemRandom().randrange(1, 1 << 31)
    print(f"fuzz {target.name}: {target.fresh} fresh inputs of seed {seed}")
    held(target, seed, target.fresh)


def test_the_same_seed_gives_the_same_inputs() -> None:
    for target in ALL.values():
        pool = corpus.pool(target)
        one, two = (Mutator(target, random.Random(5), pool) for _ in range(2))
        assert [one.fresh() for _ in range(20)] == [two.fresh() for _ in range(20)]


def test_parts_of_a_seed_make_the_seed_again() -> None:
    """So that a mutation changes the one part, and not by accident all."""
    for name in ("header", "message", "batch", "broker"):
        target = ALL[name]
        joined = [target.join(target.split(data)) == data for data in target.seeds()]
        assert sum(joined) > 0.8 * len(joined), name


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (store_targets.read_store_json, b'{"more":' + b"[" * 5_000),
        (store_targets.read_topics_json, b'{"version":1,"store":"","checksum":0,"topics":[[1,"\xff",1,1,6]]}'),
        (store_targets.read_topics_json, b'{"more":' + b"[" * 5_000),
    ],
)
def test_a_named_file_that_is_no_json_is_refused_by_name(read: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(StoreDamaged):
        read(data)


# --- planted bugs ------------------------------------------------------------------------------------------------


def _loses_the_length(splitter: Any, data: bytes, feed: Any = frame.FrameSplitter.feed) -> list[bytes]:
    frames: list[bytes] = feed(splitter, data)
    splitter._wanted = 8
    if len(splitter._pending) == 3:
        splitter._pending = splitter._pending[:2]
    return frames


def _first_pair_wins(text: bytes, name: str) -> bytes | None:
    for piece in text.split(b"\x02"):
        key, _, value = piece.partition(b"\x01")
        if key == name.encode() and value:
            return value
    return None


def _believes_headers(buffer: Any, at: int, offset: int, room: int) -> Any:
    return batch_codec.read_header(buffer, at, offset, room)


def _believes_slots(layout: Any, magic: bytes, version: int, data: bytes) -> Any:
    fields = layout.unpack(data.ljust(layout.size, b"\0"))
    return fields[2:-1] if fields[0] == magic else two_slots.Missing()


def _nothing_is_durable_behind(scan: Any, position: int, behind: Any = log_scan.LogScan._beyond) -> Any:
    return behind(scan, position)._replace(durable_position=0)


take = Connection._take


def _only_the_last_frame(self: Any, frames: list[bytes]) -> None:
    take(self, frames[-1:])


def _no_end_of_the_text(header: bytes, at: int, size: int) -> tuple[str, int]:
    return header[at : at + size].decode(), at + size


def _only_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _keeps_the_flag(buffer: bytearray, at: int, queue_offset: int, store_time_ms: int, prepared_offset: int) -> None:
    stored_message.patch_released(buffer, at, queue_offset, store_time_ms)


def _any_topic(payload: bytes, messages: int, *, topic: str, **options: Any) -> Any:
    found = verify_payload(payload, messages, topic=topic, **options)
    return half_batch.Verified(False, 0) if isinstance(found, str) and "another topic" in found else found


_delay_problem = half_batch._delay_problem


def _only_other_delays(delay: int, stated: bytes, number: int) -> str:
    return _delay_problem(delay, stated, number) if delay else ""


def _decide_fields(digest: Any, default: Any = msgspec.NODEFAULT) -> Any:
    """``DecideFields`` with another ``digest``."""
    hints = get_type_hints(half_batches.DecideFields, include_extras=True) | {"digest": digest}
    found = msgspec.structs.fields(half_batches.DecideFields)
    defaults = {one.name: one.default for one in found} | {"digest": default}
    fields = [
        (one.name, hints[one.name], msgspec.field(name=one.encode_name, default=defaults[one.name])) for one in found
    ]
    return msgspec.defstruct("DecideFields", fields, kw_only=True)


#: Target, where, what; each is a way in which such code has been wrong.
PLANTED: dict[str, tuple[str, Any, str, Any]] = {
    "bytes are lost between two reads": ("frames", frame.FrameSplitter, "feed", _loses_the_length),
    "numbers that are not text are lost": ("header", header, "_scalar_text", _only_text),
    "a text may leave its header": ("header", binary_header, "_text", _no_end_of_the_text),
    "empty text is kept": ("header", header, "without_empty", dict),
    "no limit of nesting": ("body", java_json, "_is_deep", lambda value: True),
    "the first of two pairs wins": ("properties", properties, "find", _first_pair_wins),
    "a commit changes no flags": ("message", stored_message, "patch_committed", _keeps_the_flag),
    "a longer host is forgotten": ("message", stored_message, "_PLACES", stored_message._PLACES[:1] * 4),
    "checksums of batches are not looked at": ("log", log_scan, "examine", _believes_headers),
    "damage below a durable position is cut": ("log", log_scan.LogScan, "_beyond", _nothing_is_durable_behind),
    "checksums of slots are not looked at": ("published", two_slots, "decode_slot", _believes_slots),
    "another topic in a half batch": ("half_batch", half_batch_targets, "verify_payload", _any_topic),
    "properties of a half batch are not looked at": ("half_batch", half_batch, "_properties_problem", lambda *_: ""),
    "delays of a half batch are not compared": ("half_batch_delays", half_batch, "_delay_problem", lambda *_: ""),
    "a delay may be missing": ("half_batch_delays", half_batch, "_delay_problem", _only_other_delays),
    "a digest of any length, or none": (
        "half_batch_requests",
        half_batches,
        "DecideFields",
        _decide_fields(half_batches.Hex, ""),
    ),
    "a digest that is not hex": ("half_batch_requests", half_batches, "DecideFields", _decide_fields(str)),
    "frames of one read are lost": ("broker", Connection, "_take", _only_the_last_frame),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_bug_is_found(planted: tuple[str, Any, str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, where, attribute, wrong = planted
    target = ALL[name]
    pool = corpus.pool(target)  # made before the bug is there
    fair = Mutator(target, random.Random(11), pool)
    assert not found(target.run, fair.fresh, target.fresh // 10), "a promise is broken without it"
    monkeypatch.setattr(where, attribute, wrong)
    mutator = Mutator(target, random.Random(11), pool)
    assert found(target.run, mutator.fresh, 3_000), "it was not found"


def found(run: Callable[[bytes], None], fresh: Callable[[], bytes], tries: int) -> bool:
    for _ in range(tries):
        try:
            run(fresh())
        except Exception:
            return True
    return False
