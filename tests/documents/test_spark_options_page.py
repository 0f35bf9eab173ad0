"""docs/spark-options.md has every option of the Spark source and sink, with its default and where it applies, and no other."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from halfmq.spark.options import OPTIONS, Option, parse_options
from halfmq.spark.plan.bounds import LATEST, Bounds
from halfmq.spark.sink.options import OPTIONS as OPTIONS_OF_WRITING
from halfmq.spark.sink.options import parse_sink_options
from tests.documents.pages import table

_PAGE: Final = "docs/spark-options.md"
_URL: Final = {"url": "rocketmq://h:1"}
#: What an option needs beside it.
_WITH: Final = {
    "startingHalf": {"view": "half"},
    "endingHalf": {"view": "half"},
    "publishPosition": {"group": "mine"},
}


def _read(given: Mapping[str, str]) -> Any:
    return parse_options(given if given.get("view") == "half" else {"subscribe": "t", **given})


#: By heading: the options of the code, and what reads those that are given.
_TABLES: dict[str, tuple[dict[str, Option], Callable[[Mapping[str, str]], Any]]] = {
    "Options": (OPTIONS, _read),
    "Options of writing": (OPTIONS_OF_WRITING, parse_sink_options),
}
_CASES = [pytest.param(heading, name, id=name) for heading, (options, _) in _TABLES.items() for name in options]
#: Where an option applies, at the beginning of its text.
_APPLIES: Final = re.compile(r"([\w ]+ only|views transactions and half|with publishPosition|streams): ")
#: A default on the page.
_DEFAULT: Final = re.compile(
    r"`([^`]+)` \(default\)|default `([^`]+)`|`([^`]+)` is the default|[Tt]he default is `([^`]+)`"
)


def rows(heading: str) -> dict[str, str]:
    """The meaning of each option of a table."""
    return {name: row["meaning"] for row in table(_PAGE, heading) for name in re.findall(r"`(\w+)`", row["option"])}


def applies(text: str) -> str:
    found = _APPLIES.match(text.replace("`", ""))
    return found[1] if found else ""


@pytest.mark.parametrize("heading", _TABLES)
def test_the_page_has_each_option_and_no_other(heading: str) -> None:
    named = [name for row in table(_PAGE, heading) for name in re.findall(r"`(\w+)`", row["option"])]
    assert sorted(named) == sorted(_TABLES[heading][0])


@pytest.mark.parametrize(("heading", "name"), _CASES)
def test_an_option_applies_where_the_page_says(heading: str, name: str) -> None:
    assert applies(rows(heading)[name]) == applies(_TABLES[heading][0][name].text)


@pytest.mark.parametrize(("heading", "name"), _CASES)
def test_an_option_that_is_not_given_is_the_default_of_the_page(heading: str, name: str) -> None:
    options, read = _TABLES[heading]
    meaning = rows(heading)[name]
    if meaning.startswith("as for reading"):
        meaning = rows("Options")[name]
    found = _DEFAULT.search(meaning)
    if found is None:
        assert options[name].default in (None, "", (), -1), "the page does not name the default"
        return
    (default,) = filter(None, found.groups())
    beside = {**_URL, **_WITH.get(name, {})}
    left, given = read(beside), read({**beside, name: default})
    if name == "endingOffsets":  # where nothing is set, a plan reads to the end
        assert (left.ending, given.ending) == (None, Bounds(LATEST, {}))
    else:
        assert left == given


def test_a_stream_and_a_batch_refuse_the_options_of_the_other() -> None:
    values = {"endingOffsets": "latest", "endingTimestamp": "1", "endingOffsetsByTimestamp": '{"t":{"0":1}}'}
    for name, option in OPTIONS.items():
        given = {**_URL, name: values.get(name, "1")}
        if applies(option.text) == "batch only":
            with pytest.raises(Exception, match=name):
                _read(given).for_stream()
        elif applies(option.text) == "stream only" and option.default is None:
            with pytest.raises(Exception, match=name):
                _read(given).for_batch()
