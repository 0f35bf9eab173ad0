"""Settings of a job: from a file, overridden by options, checked."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, field

from halfmq.errors import UsageError
from halfmq.spark.jobs.settings import (
    JobSettings,
    SparkSettings,
    fields_of,
    load,
    load_spark,
    parse_list,
    parse_pairs,
)


class Copy(JobSettings, frozen=True, kw_only=True):
    output: Annotated[str, Meta(description="Where to.")]
    topics: Annotated[tuple[str, ...], Meta(description="What.")] = ()
    form: Annotated[Literal["a", "b"], Meta(description="How.")] = "a"
    rows: Annotated[int | None, Meta(description="How many.")] = None
    options: Annotated[dict[str, str], Meta(description="More.")] = field(default_factory=dict)


FILE = """
[spark]
master = "spark://a:7077"
conf = { "spark.a" = "1", "spark.b" = "2" }
[copy]
output = "/file"
topics = ["x", "y"]
rows = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "jobs.toml").write_text(FILE)
    return tmp_path / "jobs.toml"


def test_options_override_the_file(file: Path) -> None:
    assert load(Copy, "copy", file=file) == Copy(output="/file", topics=("x", "y"), rows=5)
    assert load(Copy, "copy", file=file, given={"output": "/given", "rows": None}) == Copy(
        output="/given", topics=("x", "y"), rows=5
    )
    assert load_spark(file, master="local[1]", conf={"spark.b": "3"}) == SparkSettings(
        master="local[1]", conf={"spark.a": "1", "spark.b": "3"}
    )
    assert load_spark(None) == SparkSettings()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[copy]\nrows = 5", "--output missing"),
        ("[copy]\noutput = 'x'\nrow = 5", "unknown field `row`"),
        ("[copy]\noutput = 'x'\nform = 'c'", "form"),
        ("[copy]\noutput = 'x'\nrows = 'many'", r"\$.rows"),
        ("copy = 5", "is not a table"),
        ("[copy", "is not TOML"),
        ("", "--output missing"),
    ],
)
def test_file_that_is_wrong(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "jobs.toml").write_text(text)
    with pytest.raises(UsageError, match=part):
        load(Copy, "copy", file=tmp_path / "jobs.toml")


def test_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load(Copy, "copy", file=tmp_path / "none.toml")


def test_fields_have_their_descriptions() -> None:
    found = {one.name: one for one in fields_of(Copy)}
    assert list(found) == ["output", "topics", "form", "rows", "options"]
    assert (found["output"].required, found["output"].description) == (True, "Where to.")
    assert (found["rows"].type, found["rows"].default, found["options"].default) == (int, None, {})


def test_lists_and_pairs_of_the_command_line() -> None:
    assert parse_list(" a, b,,c ") == ("a", "b", "c")
    assert parse_pairs(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_pairs([wrong])
