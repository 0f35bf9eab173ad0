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

_PADDING: Final = bytes(8)
#: Masks for the first n bytes of a little-endian 8-byte word.
_FIRST: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


class PropertyTable:
    """All name-value pairs of ``rows`` messages, in order: positions in one buffer.

    ``row``: which message each pair belongs to, ascending.
    """

    def __init__(self, strings: pa.BinaryArray) -> None:
        self.rows = len(strings)
        offsets = np.frombuffer(strings.buffers()[1], dtype=np.int32, count=self.rows + 1).astype(np.int64)
        content = strings.buffers()[2] or pa.py_buffer(b"")
        text = content.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        #: Eight bytes longer than the text, so that words can be read anywhere in it.
        self._buffer = pa.py_buffer(memoryview(text).tobytes() + _PADDING)
        self._data: Bytes = as_bytes(self._buffer)
        starts, ends = _pieces(self._data[: len(text)], offsets - offsets[0])
        marks = _first_marks(np.flatnonzero(self._data[: len(text)] == 1), starts, ends)
        whole = (marks > starts) & (marks < ends - 1)
        self.row: Ints = np.searchsorted(offsets[1:] - offsets[0], starts[whole], side="right")
        self._names: Ints = starts[whole]
        self._name_lengths: Ints = marks[whole] - starts[whole]
        self._values: Ints = marks[whole] + 1
        self._value_lengths: Ints = ends[whole] - marks[whole] - 1
        self._words = gather(self._data, self._names, "<u8") & _FIRST[np.minimum(self._name_lengths, 8)]
        #: The last eight bytes of a name, all of it where it is shorter: one name always gives the same two words.
        self._last_words = np.where(
            self._name_lengths >= 8, gather(self._data, np.maximum(self._values - 9, 0), "<u8"), self._words
        )

    def find(self, name: str) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """(start, length, whether there is one) of the value of ``name`` in each row; positions are in this table's buffer."""
        key = name.encode()
        if len(key) > 16:
            raise ValueError(f"{name!r} is too long to be known by its first and last eight bytes")
        found = (self._name_lengths == len(key)) & (self._words == int.from_bytes(key[:8], "little"))
        if len(key) > 8:
            found &= self._last_words == int.from_bytes(key[-8:], "little")
        pairs = np.flatnonzero(found)
        starts = np.zeros(self.rows, np.int64)
        lengths = np.zeros(self.rows, np.int64)
        there = np.zeros(self.rows, bool)
        starts[self.row[pairs]] = self._values[pairs]  # of several in one row the last assignment stands
        lengths[self.row[pairs]] = self._value_lengths[pairs]
        there[self.row[pairs]] = True
        return starts, lengths, there

    def binary(self, starts: Ints, lengths: Ints, there: npt.NDArray[np.bool_]) -> pa.BinaryArray:
        return binary_column(self._buffer, starts, lengths, valid=there)

    def text(self, name: str) -> pa.StringArray:
        """The value of ``name``, null where a row has none."""
        return string_column(self.binary(*self.find(name)))

    def first_token(self, name: str) -> pa.BinaryArray:
        """What stands before the first space of the value of ``name``; null where there is nothing."""
        starts, lengths, there = self.find(name)
        for row in np.flatnonzero(there & (self._data[starts] == ord(" "))):  # "KEYS" that begins with a space: rare
            value = self._data[starts[row] : starts[row] + lengths[row]].tobytes()
            skipped = len(value) - len(value.lstrip(b" "))
            starts[row] += skipped
            lengths[row] -= skipped
            there[row] = lengths[row] > 0
        spaces = np.append(np.flatnonzero(self._data == ord(" ")), len(self._data))
        lengths = np.minimum(lengths, spaces[np.searchsorted(spaces, starts)] - starts)
        return self.binary(starts, lengths, there)

    def maps(self) -> pa.MapArray:
        """All pairs of each row, the last one of those with the same name."""
        kept = self._without_repeats()
        row = self.row if kept is None else self.row[kept]
        pairs = slice(None) if kept is None else kept
        offsets = np.searchsorted(row, np.arange(self.rows + 1)).astype(np.int32)
        names = string_column(binary_column(self._buffer, self._names[pairs], self._name_lengths[pairs]))
        values = string_column(binary_column(self._buffer, self._values[pairs], self._value_lengths[pairs]))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)

    def _without_repeats(self) -> Ints | None:
        """The pairs that stay, or None for all of them."""
        pairs = len(self.row)
        if pairs == 0 or not self._may_repeat():
            return None
        names = string_column(binary_column(self._buffer, self._names, self._name_lengths)).dictionary_encode()
        key = self.row * len(names.dictionary) + names.indices.to_numpy(zero_copy_only=False)
        _, last = np.unique(key[::-1], return_index=True)
        return None if len(last) == pairs else np.sort(pairs - 1 - last)

    def _may_repeat(self) -> bool:
        """Whether some row may hold a name twice. May be wrong in one direction only: True without a repeat."""
        word = self._words * np.uint64(0x9E3779B97F4A7C15) ^ self._last_words ^ self._name_lengths.astype(np.uint64)
        each, rest = divmod(len(word), self.rows)
        if rest == 0 and np.array_equal(self.row, np.repeat(np.arange(self.rows), each)):
            table = word.reshape(self.rows, each)
            if (table == table[0]).all():  # the usual case: one producer, the same names in the same order
                return len(np.unique(table[0])) < each
        order = np.lexsort((word, self.row))
        sorted_row, sorted_word = self.row[order], word[order]
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
