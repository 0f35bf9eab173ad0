"""Every structure of fixed size on disk and in payloads: its fields with names and widths, in order. Formats, offsets and types of NumPy
come from here. ``docs/storage-format.md`` describes them for people; a test compares the two.

Numbers are big-endian. Rows of indexes are in ``store.layout``.
"""

import struct
from typing import Any, Final


class Layout:
    """Fields in their order, each with the ``struct`` format of a single value (``8s``: bytes); also the whole, as a ``Struct``."""

    def __init__(self, *first: "Layout", size: int | None = None, **fields: str) -> None:
        """The fields of ``first``, then ``fields``, then bytes that are skipped, and written as 0, up to ``size``."""
        self.fields: Final[dict[str, str]] = {
            name: form for part in first for name, form in part.fields.items()
        } | fields
        #: Bytes from the start to each field.
        self.at: Final[dict[str, int]] = {}
        place = 0
        for name, form in self.fields.items():
            self.at[name] = place
            place += struct.calcsize(">" + form)
        self.size: Final = place if size is None else size
        whole = struct.Struct(f">{''.join(self.fields.values())}" + f"{self.size - place}x" * (self.size > place))
        self.pack: Final = whole.pack
        self.pack_into: Final = whole.pack_into
        self.unpack: Final = whole.unpack
        self.unpack_from: Final = whole.unpack_from
        self.iter_unpack: Final = whole.iter_unpack

    def part(self, *names: str) -> struct.Struct:
        """These fields, in their order, from the first to the last; others in between are skipped, and written as 0."""
        return struct.Struct(">" + self._padded(self.at[names[0]], dict.fromkeys(names)))

    def only(self, *names: str, **forms: str) -> struct.Struct:
        """The whole structure, in which the other fields are skipped, and written as 0.

        ``forms``: fields that are read with another format, for several in one value.
        """
        form = self._padded(0, dict.fromkeys(names) | forms)
        return struct.Struct(f">{form}{self.size - struct.calcsize('>' + form)}x")

    def _padded(self, place: int, forms: dict[str, Any]) -> str:
        parts = []
        for name, given in forms.items():
            form = given or self.fields[name]
            parts.append(f"{self.at[name] - place}x{form}" if self.at[name] > place else form)
            place = self.at[name] + struct.calcsize(">" + form)
        return "".join(parts)

    @property
    def dtype(self) -> Any:
        """What ``numpy.dtype`` takes for an array of such structures. NumPy is not imported here."""
        return {
            "names": list(self.fields),
            "formats": [f">{form}".replace(">8s", "V8") for form in self.fields.values()],
            "offsets": list(self.at.values()),
            "itemsize": self.size,
        }


#: RocketMQ's layout of a message up to its body, with IPv4 hosts; see ``stored_message``.
STORED_MESSAGE: Final = Layout(
    total="I", magic="I", body_crc="I", queue_id="i", flag="i", queue_offset="q", physical_offset="q", sys_flag="i",
    born_time_ms="q", born_host="8s", store_time_ms="q", store_host="8s", reconsume_times="i", prepared_offset="q",
    body_bytes="i",
)  # fmt: skip

# --- records: head and prefix; see ``store.record_codec`` for what follows

RECORD_HEAD: Final = Layout(kind="B", flags="B", reserved="H", record_bytes="I")
#: Index and count: of a half, 0 in a plain message.
MESSAGE_HEAD: Final = Layout(RECORD_HEAD, topic_id="i", index="H", count="H")
DELAYED_HEAD: Final = Layout(RECORD_HEAD, topic_id="i", tag_hash="i", due_ms="q", key_hash="q")
COPIED_HALF_HEAD: Final = Layout(
    RECORD_HEAD, first_offset="q", half_index="q", topic_id="i", index="H", count="H", prepared_at_ms="q",
    grace_until_ms="q", next_check_at_ms="q", checks="i", size=64,
)  # fmt: skip
COPIED_DELAYED_HEAD: Final = Layout(
    RECORD_HEAD, first_offset="q", half_index="q", due_ms="q", key_hash="q", tag_hash="i", topic_id="i"
)
#: User: who requested it, the last bytes of the record. Records of versions without users have 0 bytes of it.
VERDICT_HEAD: Final = Layout(RECORD_HEAD, decided_by="B", user_bytes="B", group_bytes="H", id_bytes="H", count="H")
#: One message that a verdict or a release shows.
REF: Final = Layout(
    offset="q", first_offset="q", half_index="q", queue_offset="q", due_ms="q", key_hash="q", message_bytes="i",
    topic_id="i", queue_id="i", tag_hash="i",
)  # fmt: skip
CHECKED_HEAD: Final = Layout(
    RECORD_HEAD, half_index="q", next_check_at_ms="q", checks="i", group_bytes="H", id_bytes="H"
)
PARKED_HEAD: Final = Layout(
    RECORD_HEAD, half_index="q", checks="i", decided_by="B", because="B", group_bytes="H", id_bytes="H", reserved_2="H"
)
OPERATOR_ACTED_HEAD: Final = Layout(
    RECORD_HEAD, action="B", reserved_2="B", subject_bytes="H", name_bytes="H", reason_bytes="H", peer_bytes="H",
    reserved_3="H",
)  # fmt: skip
#: Of BASE and TRIM.
NUMBER_HEAD: Final = Layout(RECORD_HEAD, number="q")
#: The reserved bytes of the head are lengths of the topic and the stream of a query.
_QUERY_HEAD: Final = Layout(kind="B", flags="B", query_topic_bytes="B", stream_bytes="B", record_bytes="I")
HALF_BATCH_HEAD: Final = Layout(
    _QUERY_HEAD, first_offset="q", half_index="q", prepared_at_ms="q", grace_ms="q", next_check_at_ms="q", topic_id="i",
    queue_id="i", messages="i", checksum="I", entries_checksum="I", payload_bytes="I", checks="i", index="H", count="H",
    batch_flags="B", group_bytes="B", id_bytes="B", attempt_bytes="B",
)  # fmt: skip
DECIDED_HEAD: Final = Layout(
    _QUERY_HEAD,
    decided_by="B",
    digest_bytes="B",
    group_bytes="H",
    id_bytes="H",
    user_bytes="B",
    decided_flags="B",
    refs="I",
    lost="I",
)
#: One half batch that a decision shows.
BATCH_REF: Final = Layout(
    offset="q",
    first_offset="q",
    half_index="q",
    queue_offset="q",
    record_bytes="i",
    messages="i",
    topic_id="i",
    queue_id="i",
)

# --- the payload of a half batch; see ``half_batch``

ITEM_HEAD: Final = Layout(kind="B", flags="B", reserved="H", item_bytes="I", from_start="I", number="I")
#: With its message up to the body.
ITEM: Final = Layout(ITEM_HEAD, STORED_MESSAGE)
PAYLOAD_ENTRY: Final = Layout(from_start="I", message_bytes="I", tag_hash="i", key_hash="q")
