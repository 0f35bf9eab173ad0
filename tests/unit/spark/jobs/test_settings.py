"""Settings of a job from a file and from options: what is unknown, missing or of the wrong type is an error that names it."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, field

from halfmq.errors import UsageError
from halfmq.spark.jobs.settings import (
    JobSettings,
    SparkSettings,
    check_tables,
    fields_of,
    is_list,
    is_pairs,
    load,
    load_spark,
    parse_list,
    parse_pairs,
)


class Copy(JobSettings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(description="Where from.")]
    topics: tuple[str, ...] = ()
    rows_max: Annotated[int | None, Meta(description="How many.")] = None
    form: Literal["parquet", "delta"] = "parquet"
    options: dict[str, str] = field(default_factory=dict)


def written(directory: Path, text: str) -> Path:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return path


def test_options_override_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[copy]\nurl = "a"\ntopics = ["x", "y"]\nrows_max = 5\n[copy.options]\ngroup = "g"\n')
    assert load(Copy, "copy", file=file) == Copy(url="a", topics=("x", "y"), rows_max=5, options={"group": "g"})
    assert load(Copy, "copy", file=file, given={"url": "b", "rows_max": None}).url == "b"
    assert load(Copy, "copy", file=file, given={"rows_max": 7}).rows_max == 7


def test_a_job_without_a_table_in_the_file_has_its_defaults(tmp_path: Path) -> None:
    assert load(Copy, "copy", file=written(tmp_path, "[other]\nx = 1\n"), given={"url": "a"}) == Copy(url="a")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[copy]\n", "--url missing"),
        ('[copy]\nurl = "a"\nrow_max = 5\n', "row_max"),
        ('[copy]\nurl = "a"\nrows_max = "many"\n', "rows_max"),
        ('[copy]\nurl = "a"\nform = "csv"\n', "form"),
        ("copy = 5\n", "is not a table"),
        ("[copy\n", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        load(Copy, "copy", file=written(tmp_path, text))


@pytest.mark.parametrize("text", ["[injest]\nx = 1\n", "[copy]\n[injest]\n", "injest = 5\n[spark]\n"])
def test_a_name_that_is_no_table_of_a_job_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"unknown injest.*\[spark\], \[copy\], \[move\]"):
        check_tables(written(tmp_path, text), ["copy", "move"])
    check_tables(written(tmp_path, "[spark]\n[move]\nx = 1\n[copy.options]\na = 'b'\n"), ["copy", "move"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nothing.toml: No such file"):
        load(Copy, "copy", file=tmp_path / "nothing.toml")


def test_settings_of_spark_are_shared_and_overridden_one_by_one(tmp_path: Path) -> None:
    file = written(tmp_path, '[spark]\nmaster = "local[1]"\n[spark.conf]\n"spark.driver.memory" = "1g"\na = "b"\n')
    assert load_spark(file) == SparkSettings(master="local[1]", conf={"spark.driver.memory": "1g", "a": "b"})
    assert load_spark(file, master="m", conf={"a": "c"}) == SparkSettings(
        master="m", conf={"spark.driver.memory": "1g", "a": "c"}
    )
    assert load_spark(None) == SparkSettings()


def test_fields_tell_what_a_command_line_needs() -> None:
    url, topics, rows_max, form, options = fields_of(Copy)
    assert (url.name, url.type, url.description, url.required) == ("url", str, "Where from.", True)
    assert (rows_max.type, rows_max.description, rows_max.required, rows_max.default) == (int, "How many.", False, None)
    assert is_list(topics.type)
    assert not is_list(form.type)
    assert is_pairs(options.type)
    assert (form.default, options.default, topics.required) == ("parquet", {}, False)


def test_lists_and_pairs_of_the_command_line() -> None:
    assert parse_list(" a, b,,c ") == ("a", "b", "c")
    assert parse_pairs(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            parse_pairs([wrong])
