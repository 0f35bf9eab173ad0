"""Text that a peer chose, made harmless."""

import json
import sys
import unicodedata

import pytest

from halfmq.errors import RequestFailed
from halfmq.printable import printable, printable_json, traceback_lines

EVERY = "".join(map(chr, range(sys.maxunicode + 1)))
#: Categories of characters that act on a terminal or on the text around them, instead of showing something.
ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_no_character_stays_that_acts_on_a_terminal_or_a_line() -> None:
    shown = printable(EVERY)
    assert shown.isprintable()
    assert not {one for one in set(shown) if unicodedata.category(one) in ACTING}
    assert {"ä", "中", "😀", "…", " ", "\\"} <= set(shown), "what is printed as it is stays"
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2K", "\\x1b[2K"),
        ("a\r\nb", "a\\r\\nb"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("[red]&<", "[red]&<"),
    ],
)
def test_escapes_are_those_of_python(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_kept_characters_stay() -> None:
    assert printable("a\nb\r", keep="\n") == "a\nb\\r"


def test_json_has_the_same_value() -> None:
    value = {EVERY.encode("utf-8", "ignore").decode(): ["\x9b", "\x7f\u202e\U000e0001", 1, None]}
    document = json.dumps(value, ensure_ascii=False, indent=1).encode()
    shown = printable_json(document)
    assert not {one for one in set(shown.decode()) - {"\n"} if not one.isprintable()}
    assert json.loads(shown) == value
    assert printable_json(b'{"a":1}') == b'{"a":1}'


def test_text_of_an_error_is_printable_and_so_is_a_traceback() -> None:
    error = RequestFailed("remark: \x1b[2K\nTraceback", hint="\u202e")
    assert str(error) == "remark: \\x1b[2K\\nTraceback (\\u202e)"
    try:
        try:
            raise ValueError("one\nINFO forged")
        except ValueError as cause:
            raise KeyError("two\x1b") from cause
    except KeyError as error:
        lines = traceback_lines(error)
    assert lines[0] == "Traceback (most recent call last):"
    assert "ValueError: one\\nINFO forged" in lines
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines[-1] == "KeyError: 'two\\x1b'"
    assert any(line.strip() == 'raise ValueError("one\\nINFO forged")' for line in lines), "places keep their lines"
    group = ExceptionGroup("all\nof", [ValueError("one\nINFO forged")])
    assert not [line for line in traceback_lines(group) if line.startswith("INFO") or not line.isprintable()]
