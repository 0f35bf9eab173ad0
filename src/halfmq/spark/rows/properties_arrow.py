"""Parses the property strings of many messages at once: single properties as columns, all properties as a map.

The rules are those of ``model.properties`` (split at 0x02, each part at its first 0x01, drop empty names or values, the last of
several wins); a test compares the two. Vectorised: one pass finds all separators, the rest is arithmetic on their positions.

Messages of one producer mostly have the same names in the same order. ``_uniform_rows`` detects this; a name is then a column
number, without a search. ``_MixedRows`` handles all other rows and takes two to three times as long.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halfmq.model.properties import NAME_VALUE_BYTE, PROPERTY_BYTE
from halfmq.spark.rows.byte_slices import Bytes, Ints, as_bytes, binary_column, gather, string_column

_WORD: Final = 8
_SPACE: Final = ord(" ")
#: Values of a property: (start, length, whether it exists) of each row.
Found = tuple[Ints, Ints, npt.NDArray[np.bool_]]
#: Masks for the first n bytes of a little-endian 8-byte word.
_FIRST: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


class PropertyTable:
    """The properties of messages; ``buffer[start : start + length]`` is the property string of each."""

    def __init__(self, buffer: pa.Buffer, starts: Ints, lengths: Ints) -> None:
        if len(buffer) < _WORD:
            buffer = pa.py_buffer(buffer.to_pybytes() + bytes(_WORD))
        self.rows = len(starts)
        # Consecutive, followed by eight arbitrary bytes, so that a word can be read at each position.
        strings = binary_column(buffer, np.append(starts, 0), np.append(lengths, _WORD))
        offsets = np.frombuffer(strings.buffers()[1], np.int32, self.rows + 1).astype(np.int64)
        self._buffer = strings.buffers()[2]
        self._data: Bytes = as_bytes(self._buffer)
        self._text = self._data[: int(offsets[-1])]
        self._pairs: _UniformRows | _MixedRows = _uniform_rows(self._data, self._text, offsets) or _MixedRows(
            self._data, self._text, offsets
        )
        self._found: dict[str, Found] = {}

    def find(self, name: str) -> Found:
        """Values of property ``name``, as positions in the buffer of this table. The caller must not modify them."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._pairs.find(name.encode())
        return found

    def binary(self, starts: Ints, lengths: Ints, there: npt.NDArray[np.bool_]) -> pa.BinaryArray:
        """Slices of the buffer of this table as a column; null where not ``there``."""
        return binary_column(self._buffer, starts, lengths, valid=there)

    def text(self, name: str) -> pa.StringArray:
        """The values of ``name`` as text; null where a row has none."""
        return string_column(self.binary(*self.find(name)))

    def first_token(self, name: str) -> pa.BinaryArray:
        """The first space-separated word of the values of ``name``; null where there is none."""
        starts, lengths, there = self.find(name)
        all_spaces = np.flatnonzero(self._text == _SPACE)
        if not len(all_spaces):
            return self.binary(starts, lengths, there)
        starts, lengths, there = starts.copy(), lengths.copy(), there.copy()
        for row in np.flatnonzero(there & (self._data[starts] == _SPACE)):  # values with leading spaces, which are rare
            value = self._data[starts[row] : starts[row] + lengths[row]].tobytes()
            skipped = len(value) - len(value.lstrip(b" "))
            starts[row] += skipped
            lengths[row] -= skipped
            there[row] = lengths[row] > 0
        spaces = np.append(all_spaces, len(self._data))
        lengths = np.minimum(lengths, spaces[np.searchsorted(spaces, starts)] - starts)
        return self.binary(starts, lengths, there)

    def maps(self) -> pa.MapArray:
        """All properties of each row; of several with the same name, the last."""
        pairs = self._pairs
        names = string_column(binary_column(self._buffer, pairs.names, pairs.name_lengths))
        kept = pairs.without_repeats(names)
        first_pairs = pairs.first_pairs
        values, value_lengths = pairs.values, pairs.value_lengths
        if kept is not None:
            first_pairs = np.searchsorted(kept, first_pairs)
            names, values, value_lengths = names.take(pa.array(kept)), values[kept], value_lengths[kept]
        texts = string_column(binary_column(self._buffer, values, value_lengths))
        return pa.MapArray.from_arrays(pa.array(first_pairs.astype(np.int32), pa.int32()), names, texts)

    def lists(self, excluded: pa.Array) -> pa.ListArray:
        """The properties of each row whose names are not in ``excluded`` (text), as a list of (name, value as bytes) in their order; of
        several with the same name, the last. Null for a row without any.
        """
        pairs = self._pairs
        names = string_column(binary_column(self._buffer, pairs.names, pairs.name_lengths))
        wanted = ~pc.is_in(names, value_set=excluded).to_numpy(zero_copy_only=False)
        kept = pairs.without_repeats(names)
        if kept is not None:
            last = np.zeros(len(wanted), bool)
            last[kept] = True
            wanted &= last
        chosen = np.flatnonzero(wanted)
        offsets = np.searchsorted(chosen, pairs.first_pairs).astype(np.int32)
        values = binary_column(self._buffer, pairs.values[chosen], pairs.value_lengths[chosen])
        elements = pa.StructArray.from_arrays(
            [names.take(pa.array(chosen)), values],
            fields=[pa.field("key", pa.string()), pa.field("value", pa.binary())],
        )
        listed = pa.list_(pa.field("element", elements.type))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), elements, type=listed, mask=pa.array(np.diff(offsets) == 0)
        )


class _UniformRows:
    """Name-value pairs of rows with the same names in the same order. ``marks`` (of 0x01) and ``ends``: positions, rows x pairs."""

    def __init__(self, keys: list[bytes], marks: Ints, ends: Ints) -> None:
        self._keys = keys
        self._marks = marks
        self._ends = ends
        self._name_bytes: Ints = np.array([len(key) for key in keys], np.int64)

    def find(self, key: bytes) -> Found:
        rows = len(self._marks)
        if key not in self._keys:
            return np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
        last = len(self._keys) - 1 - self._keys[::-1].index(key)
        starts: Ints = self._marks[:, last] + 1
        return starts, self._ends[:, last] - starts, np.ones(rows, bool)

    @property
    def names(self) -> Ints:
        return (self._marks - self._name_bytes).ravel()

    @property
    def name_lengths(self) -> Ints:
        return np.tile(self._name_bytes, len(self._marks))

    @property
    def values(self) -> Ints:
        return (self._marks + 1).ravel()

    @property
    def value_lengths(self) -> Ints:
        return (self._ends - self._marks - 1).ravel()

    @property
    def first_pairs(self) -> Ints:
        return np.arange(len(self._marks) + 1) * len(self._keys)

    def without_repeats(self, names: pa.StringArray) -> Ints | None:
        """Indices of the pairs to keep; None: all."""
        count = len(self._keys)
        kept = [at for at, key in enumerate(self._keys) if key not in self._keys[at + 1 :]]
        if len(kept) == count:
            return None
        pairs: Ints = (np.arange(len(self._marks))[:, None] * count + np.array(kept)).ravel()
        return pairs


def _uniform_rows(data: Bytes, text: Bytes, offsets: Ints) -> _UniformRows | None:
    """The pairs, if all rows have the same names in the same order; otherwise None.

    All bytes of all names are compared with those of the first row. ``data`` is ``text`` and eight more bytes.
    """
    rows = len(offsets) - 1
    separators = np.flatnonzero(
        text <= PROPERTY_BYTE
    )  # including 0x00, which violates the order below: such rows are mixed
    first = text[: offsets[1]] if rows else text
    each = int((first <= PROPERTY_BYTE).sum())
    if each == 0 or len(separators) != each * rows:
        return None
    places = separators.reshape(rows, each)
    if (places[:, 0] < offsets[:-1]).any() or (places[:, -1] >= offsets[1:]).any():
        return None
    kinds = text.take(separators).reshape(rows, each)
    if not (kinds[:, 0::2] == NAME_VALUE_BYTE).all() or not (kinds[:, 1::2] == PROPERTY_BYTE).all():
        return None
    marks = places[:, 0::2]
    ends = places[:, 1::2]
    if each % 2:  # no trailing separator
        ends = np.column_stack([ends, offsets[1:]])
    elif not (ends[:, -1] + 1 == offsets[1:]).all():
        return None
    names = np.empty_like(ends)
    names[:, 0] = offsets[:-1]
    names[:, 1:] = ends[:, :-1] + 1
    lengths = (marks - names)[0]
    if lengths.min() < 1 or not (marks - names == lengths).all() or (ends - marks).min() < 2:
        return None
    if not _same_words(data, names, lengths):
        return None
    keys = [first[name : name + length].tobytes() for name, length in zip(names[0], lengths, strict=True)]
    return _UniformRows(keys, marks, ends)


def _same_words(data: Bytes, names: Ints, lengths: Ints) -> bool:
    """Whether the names in each column equal that of the first row; compares words of eight bytes."""
    words = gather(data, names, "<u8") & _FIRST[np.minimum(lengths, _WORD)]
    if not (words == words[0]).all():
        return False
    for column, length in enumerate(lengths.tolist()):
        for at in range(_WORD, length, _WORD):  # the last word overlaps the previous one, so that it ends with the name
            words = gather(data, names[:, column] + min(at, length - _WORD), "<u8")
            if not (words == words[0]).all():
                return False
    return True


class _MixedRows:
    """Name-value pairs of arbitrary rows."""

    def __init__(self, data: Bytes, text: Bytes, offsets: Ints) -> None:
        self._data = data
        self._rows = len(offsets) - 1
        names, ends = _pieces(text, offsets)
        marks = _first_marks(np.flatnonzero(text == NAME_VALUE_BYTE), names, ends)
        whole = (marks > names) & (marks < ends - 1)
        if not whole.all():
            names, marks, ends = names[whole], marks[whole], ends[whole]
        self.names: Ints = names
        self.name_lengths: Ints = marks - names
        self.values: Ints = marks + 1
        self.value_lengths: Ints = ends - marks - 1
        #: Index of the first pair of each row, then the number of pairs.
        self.first_pairs: Ints = np.searchsorted(names, offsets)
        #: Row of each pair, ascending.
        self._row: Ints = np.repeat(np.arange(self._rows), np.diff(self.first_pairs))
        self._words = gather(data, names, "<u8") & _FIRST[np.minimum(self.name_lengths, _WORD)]

    def find(self, key: bytes) -> Found:
        if len(key) > 2 * _WORD:
            raise ValueError(f"{key!r} is too long to be identified by its first and last eight bytes")
        pairs = np.flatnonzero(self._words == int.from_bytes(key[:_WORD], "little"))
        same = self.name_lengths[pairs] == len(key)
        if len(key) > _WORD:
            same &= gather(self._data, self.values[pairs] - 1 - _WORD, "<u8") == int.from_bytes(key[-_WORD:], "little")
        if not same.all():
            pairs = pairs[same]
        row = self._row[pairs]
        starts = np.zeros(self._rows, np.int64)
        lengths = np.zeros(self._rows, np.int64)
        there = np.zeros(self._rows, bool)
        starts[row] = self.values[pairs]  # of several in a row the last one wins
        lengths[row] = self.value_lengths[pairs]
        there[row] = True
        return starts, lengths, there

    def without_repeats(self, names: pa.StringArray) -> Ints | None:
        """Indices of the pairs to keep; None: all."""
        pairs = len(self._row)
        if pairs == 0 or not self._may_repeat():
            return None
        coded = names.dictionary_encode()
        key = self._row * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        _, last = np.unique(key[::-1], return_index=True)
        return None if len(last) == pairs else np.sort(pairs - 1 - last)

    def _may_repeat(self) -> bool:
        """Whether a row may contain a name twice; may return True although none does."""
        last_words = np.where(
            self.name_lengths >= _WORD, gather(self._data, np.maximum(self.values - 1 - _WORD, 0), "<u8"), self._words
        )
        # Equal names have equal hashes, so rows without equal hashes have no repeated names.
        word = self._words * np.uint64(0x9E3779B97F4A7C15) ^ last_words ^ self.name_lengths.astype(np.uint64)
        order = np.lexsort((word, self._row))
        sorted_row, sorted_word = self._row[order], word[order]
        return bool(((sorted_row[1:] == sorted_row[:-1]) & (sorted_word[1:] == sorted_word[:-1])).any())


def _pieces(data: Bytes, offsets: Ints) -> tuple[Ints, Ints]:
    """(starts, ends) of the parts between separators. The end of a row also ends a part, unless a separator precedes it."""
    separators = np.flatnonzero(data == PROPERTY_BYTE)
    filled = offsets[1:] > offsets[:-1]
    row_ends = offsets[1:][filled]
    open_ends = row_ends[data[row_ends - 1] != PROPERTY_BYTE]
    if len(open_ends):
        # Row ends first, so that in the stable sort they precede a separator at the same position.
        ends = np.concatenate([open_ends, separators])
        order = np.argsort(ends, kind="stable")
        ends = ends[order]
        nexts = ends + (order >= len(open_ends))
    else:
        ends = separators
        nexts = ends + 1
    starts = np.concatenate([np.zeros(1, np.int64), nexts[:-1]]) if len(ends) else ends
    return starts, ends


def _first_marks(marks: Ints, starts: Ints, ends: Ints) -> Ints:
    """The first 0x01 at or after each start; the end of the part if it has none."""
    if len(marks) == len(starts) and ((marks >= starts) & (marks < ends)).all():
        return marks
    at = np.searchsorted(marks, starts)
    padded = np.append(marks, np.iinfo(np.int64).max)
    found: Ints = np.minimum(padded[at], ends)
    return found
