"""The tree of errors: fields for programs, a hint for people, and "unknown" kept apart from "failed"."""

import inspect

from halfmq import errors
from halfmq.errors import HalfmqError

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, HalfmqError)]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [found.code for found in CLASSES]
    assert len(CLASSES) > 20
    assert len(set(codes)) == len(codes), sorted(codes)


def test_every_error_says_its_hint_and_keeps_it() -> None:
    for found in CLASSES:
        error = found("what happened", hint="what to do")
        assert (str(error), error.hint) == ("what happened (what to do)", "what to do"), found


def test_only_unknown_outcomes_say_that_the_outcome_is_unknown() -> None:
    for found in CLASSES:
        assert found.outcome_known != issubclass(found, errors.OutcomeUnknown), found
