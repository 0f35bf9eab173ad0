"""Text that a peer chose, as people may see it: nothing in it moves the cursor, hides or reorders characters, or begins a line of its own.

Everything that is shown goes through here: lines of the command line (``cli/output.py``), log lines (``broker/log_output.py`` and
``client/log.py``), texts of exceptions (``errors.py``), JSON over HTTP, and the page of ``halfmq pipeline report``.
"""

import traceback


def printable(text: str, *, keep: str = "") -> str:
    """``text`` with Python's escapes in place of characters that are not printable: control characters, line ends, marks that reverse the
    direction of writing, spaces without width, surrogates, and unassigned ones. ``keep``: those that stay.
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text])


def printable_json(document: bytes) -> bytes:
    """The JSON ``document`` with JSON's escapes in place of such characters: it has the same value. Line ends between tokens stay."""
    text = document.decode()
    if text.isprintable():
        return document
    return "".join([one if one.isprintable() or one == "\n" else _json_escape(one) for one in text]).encode()


def traceback_lines(error: BaseException) -> list[str]:
    """The traceback of ``error`` and its causes. The text of an exception is one line."""
    lines = []
    for part in traceback.format_exception(error):
        is_frame = part.lstrip(" |+-").startswith('File "')
        lines += [printable(line) for line in (part.split("\n") if is_frame else [part.strip("\n")]) if line]
    return lines


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join([f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)])
