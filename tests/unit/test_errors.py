"""The tree of errors: fields for programs, a hint for people, and "unknown" kept apart from "failed"."""

import inspect

import pytest

from halfmq import errors
from halfmq.errors import HalfmqError

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, HalfmqError)]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [found.code for found in CLASSES]
    assert len(CLASSES) > 20
    assert len(set(codes)) == len(codes), sorted(codes)


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_every_error_says_its_hint_and_keeps_it(found: type[HalfmqError]) -> None:
    error = found("what happened", hint="what to do")
    assert str(error) == "what happened (what to do)"
    assert error.hint == "what to do"


def test_only_unknown_outcomes_say_that_the_outcome_is_unknown() -> None:
    for found in CLASSES:
        assert found.outcome_known != issubclass(found, errors.OutcomeUnknown), found


def test_every_error_stands_in_the_tree_of_the_module_text() -> None:
    for found in CLASSES:
        assert errors.__doc__ is not None
        assert found.__name__ in errors.__doc__, found
