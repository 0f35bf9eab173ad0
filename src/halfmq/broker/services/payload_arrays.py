"""Verifies payloads of half batches with NumPy: half the time of message by message, if their messages have the same property names.

A fast path: it accepts, or is unsure, and then ``model.half_batch.verification`` decides and explains. So the broker responds alike without
NumPy, only later. A test compares the two.

NumPy is imported on the first payload: it costs a broker that gets none neither memory nor time to start.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from halfmq import limits
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ENTRY_BYTES, ITEM_HEAD_BYTES, Verified
from halfmq.model.layout import ITEM, PAYLOAD_ENTRY
from halfmq.model.message_facts import matters_to_a_send, tag_hashes
from halfmq.model.properties import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_BYTE, PROPERTY_SEPARATOR, TAGS, UNIQ_KEY
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import MAGIC_V1, SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK

#: ``verify(payload, messages, topic, queue_id, store_host, body_bytes_max)``; None: not accepted here.
Verify = Callable[[bytes, int, str, int, bytes, int], Verified | None]

_NAMES_MAX: Final = 32
_UINT64_BYTES: Final = 8
#: Bounds the tables that are kept: ids have 32 characters, and there is one table of 1 KiB for each place.
_ID_BYTES_MAX: Final = 64
#: Different tags, and their length together.
_TAGS_MAX: Final = 1_000
_TAGS_BYTES_MAX: Final = 65_536
#: Bodies of one length up to this are copied at once, and longer ones are summed where they are: the memory of the copies costs more than a
#: slice of each.
_COPIED_BYTES_MAX: Final = 512


def array_verification() -> Verify | None:
    """The verification with NumPy; None if it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return _ArrayVerification(numpy).verify


class _ArrayVerification:
    def __init__(self, np: Any) -> None:
        self._np = np
        self._head = np.dtype(ITEM.dtype)
        self._entry = np.dtype(PAYLOAD_ENTRY.dtype)
        #: Bits that are the same in the heads of all messages of a payload.
        mask = np.zeros(1, self._head)
        for name in (
            "kind", "flags", "reserved", "magic", "queue_id", "queue_offset", "physical_offset", "store_time_ms", "store_host",
            "reconsume_times", "prepared_offset",
        ):  # fmt: skip
            mask[name] = np.frombuffer(b"\xff" * self._head[name].itemsize, self._head[name])[0]
        mask["sys_flag"] = ~(SYS_COMPRESSED | SYS_COMPRESSION_TYPE_MASK)
        self._mask = mask.view(np.uint64)
        #: Characters that follow -> what each value of a byte changes in a CRC; see ``_crcs``.
        self._changes: dict[int, Any] = {}

    def verify(
        self, payload: bytes, messages: int, topic: str, queue_id: int, store_host: bytes, body_bytes_max: int
    ) -> Verified | None:
        np = self._np
        entries_at = len(payload) - messages * ENTRY_BYTES
        tail = (
            bytes((len(topic),)) + topic.encode() if topic.isascii() and len(topic) <= limits.TOPIC_CHARS_MAX else b""
        )
        if messages < 1 or not tail or len(store_host) != 8 or entries_at < messages * (ITEM.size + len(tail) + 2):
            return None
        entries = np.frombuffer(payload, self._entry, messages, entries_at)
        item_bytes = entries["message_bytes"].astype(np.int64) + ITEM_HEAD_BYTES
        ends = np.cumsum(item_bytes)
        begins = ends - item_bytes
        if item_bytes.min() < ITEM.size + len(tail) + 2 or ends[-1] != entries_at:
            return None
        # As plain bytes first: NumPy copies rows with fields twenty times more slowly.
        heads = self._gather(payload, begins, np.dtype(f"V{ITEM.size}")).view(self._head)
        wanted = np.zeros(1, self._head)
        wanted["kind"], wanted["magic"], wanted["queue_id"] = BATCHED, MAGIC_V1, queue_id
        wanted["store_host"] = np.void(store_host)
        words = heads.view(np.uint64).reshape(messages, ITEM.size // _UINT64_BYTES)
        body_begins = begins + ITEM.size
        body_bytes = heads["body_bytes"].astype(np.int64)
        body_ends = body_begins + body_bytes
        properties_at = body_ends + len(tail) + 2
        if not (
            ((words & self._mask) == wanted.view(np.uint64)).all()
            and (heads["item_bytes"] == item_bytes).all()
            and (heads["from_start"] == begins + HALF_BATCH_PAYLOAD_AT).all()
            and (entries["from_start"] == heads["from_start"]).all()
            and (heads["number"] == np.arange(messages)).all()
            and (heads["total"] == entries["message_bytes"]).all()
            and 0 <= body_bytes.min() <= body_bytes.max() <= body_bytes_max
            and (properties_at <= ends).all()
        ):
            return None
        lengths = np.ndarray.astype(self._gather(payload, properties_at - 2, np.dtype(">u2")), np.int64)
        if (lengths != ends - properties_at).any() or lengths.max() > limits.PROPERTIES_BYTES_MAX:
            return None
        if (self._slices(payload, body_ends, len(tail)) != np.frombuffer(tail, np.uint8)).any():
            return None
        if (heads["body_crc"] != self._body_crcs(payload, body_begins, body_ends) & 0x7FFFFFFF).any():
            return None
        has_keys = self._properties(payload, properties_at, ends, entries)
        return None if has_keys is None else Verified(has_keys, crc32(payload[entries_at:]))

    def _properties(self, payload: bytes, begins: Any, ends: Any, entries: Any) -> bool | None:
        """Whether there are KEYS; None if they are not accepted: every message must have the same names in the same order."""
        np = self._np
        whole = self._joined(payload, begins, ends)
        first = payload[begins[0] : ends[0]]
        names = [piece.partition(NAME_VALUE_SEPARATOR)[0] for piece in first.split(PROPERTY_SEPARATOR)[:-1]]
        if not first.endswith(PROPERTY_SEPARATOR) or len(names) > _NAMES_MAX:
            return None
        if b"" in names or matters_to_a_send(names):
            return None
        try:
            whole.decode()  # a separator is never part of a character, so each one is UTF-8 if all are
        except UnicodeDecodeError:
            return None
        text = np.frombuffer(whole, np.uint8)
        row_ends = np.cumsum(ends - begins)
        stops = np.flatnonzero(text == PROPERTY_BYTE)
        if len(stops) != len(names) * len(begins):
            return None
        stops = stops.reshape(len(begins), len(names))
        if (stops[:, -1] != row_ends - 1).any():
            return None
        starts = np.empty_like(stops)
        starts[:, 1:] = stops[:, :-1] + 1
        starts[:, 0] = row_ends - (ends - begins)
        ids = tags = None
        for column, name in enumerate(names):  # of two with one name the last counts, as for readers
            value_at = starts[:, column] + len(name) + 1
            if (value_at >= stops[:, column]).any():  # without a value a property does not exist
                return None
            named = np.frombuffer(name + NAME_VALUE_SEPARATOR, np.uint8)
            if (self._slices(whole, starts[:, column], len(named)) != named).any():
                return None
            if name == UNIQ_KEY.encode():
                ids = value_at, stops[:, column]
            elif name == TAGS.encode():
                tags = value_at, stops[:, column]
        if KEYS.encode() in names and whole.count(b" ") + len(begins) > limits.REQUEST_KEYS_MAX:
            return None
        hashes = 0 if ids is None else self._hashes(whole, *ids)
        if hashes is None or (entries["key_hash"] != hashes).any():
            return None
        found = 0
        if tags is not None:
            texts = [whole[begin:end] for begin, end in zip(tags[0].tolist(), tags[1].tolist(), strict=True)]
            different = set(texts)
            if len(different) > _TAGS_MAX or sum(map(len, different)) > _TAGS_BYTES_MAX:
                return None  # their hashes take long, and this cannot be interrupted
            found = np.array([tag_hashes[text] for text in texts])
        if (entries["tag_hash"] != found).any():
            return None
        return KEYS.encode() in names

    def _hashes(self, whole: bytes, begins: Any, ends: Any) -> Any:
        """``model.ids.hash64`` of texts of one length; None if their lengths differ, or they are too long."""
        np = self._np
        length = int(ends[0] - begins[0])
        if length > _ID_BYTES_MAX or (ends - begins != length).any():
            return None
        texts = self._slices(whole, begins, length)
        low = self._crcs(texts, np.zeros(1, np.uint32))
        high = self._crcs(texts, low ^ np.uint32(0xA5A5A5A5))
        return ((high.astype(np.uint64) << np.uint64(32)) | low).view(np.int64)

    def _crcs(self, texts: Any, start: Any) -> Any:
        """CRC-32 of each row, with an initial value for each row or for all.

        A CRC is linear over GF(2) for texts of one length: that of a row is that of the first row, XORed with one table value for
        each byte in which they differ, and with one for each byte of the initial value.
        """
        np = self._np
        length = texts.shape[1]
        found = np.full(len(texts), crc32(texts[0].tobytes()), np.uint32)
        for column in np.flatnonzero((texts != texts[0]).any(axis=0)):
            table = self._changes_with(length - 1 - int(column))
            found ^= table[texts[:, column]] ^ table[texts[0, column]]
        if start.any():
            raw = start.astype("<u4").view(np.uint8).reshape(-1, 4)
            for byte in range(4):
                found ^= self._changes_of_start(length, 8 * byte)[raw[:, byte]]
        return found

    def _changes_with(self, following: int) -> Any:
        table = self._changes.get(following)
        if table is None:
            zero = crc32(bytes(following + 1))
            values = [crc32(bytes((value,)) + bytes(following)) ^ zero for value in range(256)]
            table = self._changes[following] = self._np.array(values, self._np.uint32)
        return table

    def _changes_of_start(self, length: int, shift: int) -> Any:
        key = -1 - (length << 5 | shift)
        table = self._changes.get(key)
        if table is None:
            zero = crc32(bytes(length))
            values = [crc32(bytes(length), value << shift) ^ zero for value in range(256)]
            table = self._changes[key] = self._np.array(values, self._np.uint32)
        return table

    def _body_crcs(self, payload: bytes, begins: Any, ends: Any) -> Any:
        np = self._np
        length = int(ends[0] - begins[0])
        texts: Iterable[bytes | memoryview]
        if 0 < length < _COPIED_BYTES_MAX and (ends - begins == length).all():
            texts = self._gather(payload, begins, np.dtype(f"V{length}")).tolist()
        else:
            texts = map(memoryview(payload).__getitem__, map(slice, begins.tolist(), ends.tolist()))
        return np.fromiter(map(crc32, texts), np.uint32, len(begins))

    def _joined(self, payload: bytes, begins: Any, ends: Any) -> bytes:
        """``payload[begin:end]`` of all rows, one after the other."""
        length = int(ends[0] - begins[0])
        if length and (ends - begins == length).all():
            return cast(bytes, self._gather(payload, begins, self._np.dtype(f"V{length}")).tobytes())
        return b"".join(map(payload.__getitem__, map(slice, begins.tolist(), ends.tolist())))

    def _gather(self, data: bytes, starts: Any, kind: Any) -> Any:
        """A value of ``kind`` at each of ``starts``, which must lie within ``data``."""
        np = self._np
        window = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
        return window[starts]

    def _slices(self, data: bytes, starts: Any, length: int) -> Any:
        """``length`` bytes at each of ``starts``, as an array of shape (rows, length)."""
        return self._gather(data, starts, self._np.dtype(f"V{length}")).view(self._np.uint8).reshape(-1, length)
