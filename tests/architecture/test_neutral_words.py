"""Core and services speak of messages and transactions, never of the protocol that brought them."""

import io
import re
import tokenize
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "halfmq"
MODULES = sorted([*(SOURCE / "core").rglob("*.py"), *(SOURCE / "broker" / "services").rglob("*.py")])
#: Words of remoting, as whole parts of names: a frame's fields, its codes, and the properties by which a send says what it is.
WORDS = re.compile(
    r"(?i)(?<![a-z])(opaque|remoting|ext_?fields|request_?code|response_?code|tran_?msg|frame_splitter|header)(?![a-z])"
)


def words_in(source: str) -> set[str]:
    """Words of remoting in names and in strings that are no docstrings; comments may cite RocketMQ."""
    found: set[str] = set()
    at_line_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        docstring = token.type == tokenize.STRING and at_line_start
        if token.type in (tokenize.NAME, tokenize.STRING) and not docstring:
            found.update(word.lower() for word in WORDS.findall(token.string.replace("_", " ")))
            found.update(word.lower() for word in WORDS.findall(token.string))
        at_line_start = token.type in (
            tokenize.NEWLINE,
            tokenize.NL,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENCODING,
        ) or (at_line_start and token.type == tokenize.COMMENT)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_word_of_remoting_in_core_and_services(path: Path) -> None:
    allowed = {"header"} if "BATCH_HEADER_BYTES" in path.read_text() else set()
    if path.name == "send_commands.py":
        allowed.add("tran_msg")  # a property of every stored half, which a refusal names
    assert words_in(path.read_text()) <= allowed


def test_such_a_word_is_noticed() -> None:
    assert words_in('"""A header of remoting."""\nx = pairs["TRAN_MSG"]\n') == {"tran_msg"}
    assert words_in("answer(request.opaque)\n") == {"opaque"}
    assert words_in("# a header\nx = 1\n") == set()
