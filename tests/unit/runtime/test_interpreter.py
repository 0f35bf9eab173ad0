"""Which interpreters count as optimised."""

import sysconfig
from typing import Any

import pytest

from halfmq.runtime.interpreter import build, build_of

_O3 = "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall"
#: As python:3.11-slim says it, shortened.
_OPTIMISED = {"PY_CFLAGS": _O3, "CONFIG_ARGS": "'--enable-optimizations' '--with-lto' '--enable-shared'", "Py_DEBUG": 0}


@pytest.mark.parametrize(
    ("variables", "schemes", "lacks"),
    [
        (_OPTIMISED, (), ""),
        # Debian's 3.11.2 and one of pyenv, as they say it.
        ({"PY_CFLAGS": "-g -fwrapv -O2 -Wall -g -O2", "CONFIG_ARGS": "'--enable-shared' 'CC=gcc'", "Py_DEBUG": 0}, ("deb_system",), ""),
        (_OPTIMISED | {"CONFIG_ARGS": "'--prefix=/opt'"}, ("posix_prefix",), "configured without --enable-optimizations"),
        (_OPTIMISED | {"PY_CFLAGS": "-O3 -Wall -O0"}, (), "compiled with -O0"),
        (_OPTIMISED | {"PY_CFLAGS": "-Og"}, (), "compiled with -Og"),
        (_OPTIMISED | {"PY_CFLAGS": "-g -Wall"}, ("deb_system",), "compiled without -O2"),
        (_OPTIMISED | {"Py_DEBUG": 1}, (), "it is a debug build"),
        # On Windows an interpreter says nothing of this.
        ({}, (), ""),
    ],
)  # fmt: skip
def test_an_interpreter_without_optimisation_is_known_by_what_it_lacks(
    variables: dict[str, Any], schemes: tuple[str, ...], lacks: str
) -> None:
    found = build_of(variables, schemes)
    assert found.lacks == lacks
    assert str(found) == (f"not optimised: {lacks}" if lacks else "optimised")


def test_this_interpreter_is_judged_by_its_own_variables() -> None:
    assert build() == build_of(sysconfig.get_config_vars(), sysconfig.get_scheme_names())
