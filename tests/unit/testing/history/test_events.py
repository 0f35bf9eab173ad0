"""The format: what is on users' files stays readable."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from halfmq.testing.history import check_files
from halfmq.testing.history.events import Answered, AnyEvent, HalfAsked, Local, Logged

PAGE = Path(__file__).parents[4] / "docs" / "check-history.md"
_decode = msgspec.json.Decoder(AnyEvent).decode
_encode = msgspec.json.Encoder().encode


def test_lines_are_these_bytes() -> None:
    assert _encode(HalfAsked(t_us=5, by="p", op="1", group="g", tx="T", message="M", topic="t", queue=2)) == (
        b'{"e":"half","t_us":5,"by":"p","op":"1","group":"g","tx":"T","message":"M","topic":"t","queue":2}'
    )
    assert _encode(Answered(t_us=5, by="p", op="1", outcome="settled", verdict="COMMITTED", position=64)) == (
        b'{"e":"answered","t_us":5,"by":"p","op":"1","outcome":"settled","verdict":"COMMITTED","position":64}'
    )
    record = Logged(t_us=5, by="log", kind="commit", offset=64, group="g", tx="T", shown=(("t", 0, 7, 32),))
    assert _encode(record) == (
        b'{"e":"log","t_us":5,"by":"log","kind":"commit","offset":64,"group":"g","tx":"T","shown":[["t",0,7,32]]}'
    )
    assert _decode(_encode(record)) == record


def test_fields_of_later_versions_are_read_over() -> None:
    text = b'{"e":"local","t_us":5,"by":"d","group":"g","tx":"T","outcome":"COMMITTED","colour":"red"}'
    assert _decode(text) == Local(t_us=5, by="d", group="g", tx="T", outcome="COMMITTED")


def test_a_verdict_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="outcome"):
        _decode(b'{"e":"local","t_us":5,"by":"d","group":"g","tx":"T","outcome":"MAYBE"}')


def test_the_page_names_every_event_and_every_field() -> None:
    page = PAGE.read_text()
    for event in get_args(AnyEvent):
        tag = event.__struct_config__.tag
        (row,) = re.findall(rf"^\| `{tag}` \|.*$", page, re.MULTILINE)
        if tag != "log":  # made by --log
            for field in set(event.__struct_fields__) - {"t_us", "by"}:
                assert f"`{field}`" in row, f"{tag}: {field}"


def test_the_example_of_the_page_is_what_the_checker_says(tmp_path: Path) -> None:
    page = PAGE.read_text()
    lines = re.findall(r"^\{\"e\":.*\}$", page, re.MULTILINE)
    assert len(lines) == 6
    (tmp_path / "example.jsonl").write_text("\n".join(lines) + "\n")
    (violation,) = check_files([tmp_path]).violations
    told = violation.text().splitlines()
    assert "\n".join(told[:2]) in page
    shown = [line.removesuffix("...") for line in page.splitlines() if " us  shop " in line]
    assert len(shown) == len(told[2:])
    for line, expected in zip(told[2:], shown, strict=True):
        assert line.replace(f"{tmp_path}/", "").startswith(expected)
