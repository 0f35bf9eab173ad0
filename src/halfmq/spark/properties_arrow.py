"""Property strings of many messages at once: single names as columns, all of them as a map.

The rules are those of ``model.properties`` (split at 0x02, each piece at its first 0x01, empty names or values dropped,
the last of several wins); a test holds the two together. Here they are applied to all rows with numpy: one pass finds
every separator, and what follows is arithmetic on positions.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.spark.byte_slices import Bytes, Ints, as_bytes, binary_column, gather, string_column

_WORD: Final = 8
_SPACE: Final = ord(" ")
#: Masks for the first n bytes of a little-endian 8-byte word.
_FIRST: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


class PropertyTable:
    """All name-value pairs of some messages, in order: positions in one buffer.

    ``buffer[start : start + length]`` is the property string of each message.
    """

    def __init__(self, buffer: pa.Buffer, starts: Ints, lengths: Ints) -> None:
        if len(buffer) < _WORD:
            buffer = pa.py_buffer(buffer.to_pybytes() + bytes(_WORD))
        self.rows = len(starts)
        # Side by side, and eight bytes of anything behind them, so that a word can be read at every place.
        strings = binary_column(buffer, np.append(starts, 0), np.append(lengths, _WORD))
        offsets = np.frombuffer(strings.buffers()[1], np.int32, self.rows + 1).astype(np.int64)
        self._buffer = strings.buffers()[2]
        self._data: Bytes = as_bytes(self._buffer)
        self._text = self._data[: int(offsets[-1])]
        names, ends = _pieces(self._text, offsets)
        marks = _first_marks(np.flatnonzero(self._text == 1), names, ends)
        whole = (marks > names) & (marks < ends - 1)
        if not whole.all():
            names, marks, ends = names[whole], marks[whole], ends[whole]
        self._names: Ints = names
        self._name_lengths: Ints = marks - names
        self._values: Ints = marks + 1
        self._value_lengths: Ints = ends - marks - 1
        #: Number of each row's first pair, and of all pairs.
        self._first_pairs: Ints = np.searchsorted(names, offsets)
        #: Which row each pair belongs to, ascending.
        self._row: Ints = np.repeat(np.arange(self.rows), np.diff(self._first_pairs))
        self._words = gather(self._data, names, "<u8") & _FIRST[np.minimum(self._name_lengths, _WORD)]
        self._found: dict[str, tuple[Ints, Ints, npt.NDArray[np.bool_]]] = {}

    def find(self, name: str) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """(start, length, whether there is one) of the value of ``name`` in each row. Not to be changed.

        Starts are positions in this table's own buffer.
        """
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._find(name.encode())
        return found

    def _find(self, key: bytes) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        if len(key) > 2 * _WORD:
            raise ValueError(f"{key!r} is too long to be known by its first and last eight bytes")
        pairs = np.flatnonzero(self._words == int.from_bytes(key[:_WORD], "little"))
        same = self._name_lengths[pairs] == len(key)
        if len(key) > _WORD:
            same &= gather(self._data, self._values[pairs] - 1 - _WORD, "<u8") == int.from_bytes(key[-_WORD:], "little")
        if not same.all():
            pairs = pairs[same]
        row = self._row[pairs]
        starts = np.zeros(self.rows, np.int64)
        lengths = np.zeros(self.rows, np.int64)
        there = np.zeros(self.rows, bool)
        starts[row] = self._values[pairs]  # of several in one row the last assignment stands
        lengths[row] = self._value_lengths[pairs]
        there[row] = True
        return starts, lengths, there

    def binary(self, starts: Ints, lengths: Ints, there: npt.NDArray[np.bool_]) -> pa.BinaryArray:
        return binary_column(self._buffer, starts, lengths, valid=there)

    def text(self, name: str) -> pa.StringArray:
        """The value of ``name``, null where a row has none."""
        return string_column(self.binary(*self.find(name)))

    def first_token(self, name: str) -> pa.BinaryArray:
        """What stands before the first space of the value of ``name``; null where there is nothing."""
        starts, lengths, there = self.find(name)
        all_spaces = np.flatnonzero(self._text == _SPACE)
        if not len(all_spaces):
            return self.binary(starts, lengths, there)
        starts, lengths, there = starts.copy(), lengths.copy(), there.copy()
        for row in np.flatnonzero(there & (self._data[starts] == _SPACE)):  # "KEYS" that begins with a space: rare
            value = self._data[starts[row] : starts[row] + lengths[row]].tobytes()
            skipped = len(value) - len(value.lstrip(b" "))
            starts[row] += skipped
            lengths[row] -= skipped
            there[row] = lengths[row] > 0
        spaces = np.append(all_spaces, len(self._data))
        lengths = np.minimum(lengths, spaces[np.searchsorted(spaces, starts)] - starts)
        return self.binary(starts, lengths, there)

    def maps(self) -> pa.MapArray:
        """All pairs of each row, the last one of those with the same name."""
        kept = self._without_repeats()
        pairs = slice(None) if kept is None else kept
        offsets = self._first_pairs if kept is None else np.searchsorted(kept, self._first_pairs)
        names = string_column(binary_column(self._buffer, self._names[pairs], self._name_lengths[pairs]))
        values = string_column(binary_column(self._buffer, self._values[pairs], self._value_lengths[pairs]))
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32), pa.int32()), names, values)

    def _without_repeats(self) -> Ints | None:
        """The pairs that stay, or None for all of them."""
        pairs = len(self._row)
        if pairs == 0 or not self._may_repeat():
            return None
        names = string_column(binary_column(self._buffer, self._names, self._name_lengths)).dictionary_encode()
        key = self._row * len(names.dictionary) + names.indices.to_numpy(zero_copy_only=False)
        _, last = np.unique(key[::-1], return_index=True)
        return None if len(last) == pairs else np.sort(pairs - 1 - last)

    def _may_repeat(self) -> bool:
        """Whether some row may hold a name twice. May be wrong in one direction only: True without a repeat."""
        last_words = np.where(
            self._name_lengths >= _WORD, gather(self._data, np.maximum(self._values - 1 - _WORD, 0), "<u8"), self._words
        )
        # One name always gives the same word, so a row without two equal words has no name twice.
        word = self._words * np.uint64(0x9E3779B97F4A7C15) ^ last_words ^ self._name_lengths.astype(np.uint64)
        each, rest = divmod(len(word), self.rows)
        if rest == 0 and np.array_equal(self._row, np.repeat(np.arange(self.rows), each)):
            table = word.reshape(self.rows, each)
            if (table == table[0]).all():  # the usual case: one producer, the same names in the same order
                return len(np.unique(table[0])) < each
        order = np.lexsort((word, self._row))
        sorted_row, sorted_word = self._row[order], word[order]
        return bool(((sorted_row[1:] == sorted_row[:-1]) & (sorted_word[1:] == sorted_word[:-1])).any())


def _pieces(data: Bytes, offsets: Ints) -> tuple[Ints, Ints]:
    """(starts, ends) of what lies between separators; the end of a row ends a piece where no separator stands before it."""
    separators = np.flatnonzero(data == 2)
    filled = offsets[1:] > offsets[:-1]
    row_ends = offsets[1:][filled]
    open_ends = row_ends[data[row_ends - 1] != 2]
    if len(open_ends):
        # Those without a separator first, so that at one place the row's end comes before the next row's separator.
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
    """The first 0x01 at or behind each start; the end of the piece where it has none."""
    if len(marks) == len(starts) and ((marks >= starts) & (marks < ends)).all():
        return marks
    at = np.searchsorted(marks, starts)
    padded = np.append(marks, np.iinfo(np.int64).max)
    found: Ints = np.minimum(padded[at], ends)
    return found
