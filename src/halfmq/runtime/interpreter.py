"""How this Python was built. The broker is one thread that computes; without optimisation it needs a fifth more CPU.

Measured with `halfmq bench tx`: 36.6 us a transaction with Debian's Python 3.11, 43.7 us with one that was configured without
``--enable-optimizations`` (two virtual cores, November 2026).
"""

import re
import sysconfig
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

#: Debian and Ubuntu optimise by profile in rules of their own, and remove the flags from what the interpreter says of itself. Their
#: patch of ``sysconfig`` has this scheme.
_DEBIAN: Final = "deb_system"


class Build(NamedTuple):
    """``lacks``: what it lacks, in words; empty: it is optimised."""

    lacks: str

    def __str__(self) -> str:
        return f"not optimised: {self.lacks}" if self.lacks else "optimised"


def build() -> Build:
    """Of the interpreter that runs this."""
    return build_of(sysconfig.get_config_vars(), sysconfig.get_scheme_names())


def build_of(variables: Mapping[str, Any], schemes: Collection[str]) -> Build:
    """``variables``: ``sysconfig.get_config_vars()``. What an interpreter does not say counts as present."""
    if variables.get("Py_DEBUG"):
        return Build("it is a debug build")
    flags = variables.get("PY_CFLAGS") or variables.get("CFLAGS")
    if flags is not None:
        level = re.findall(r"(?<!\S)-O(\S*)", flags)[-1:]  # the last one counts
        if level not in (["2"], ["3"], ["fast"]):
            return Build(f"compiled with -O{level[0]}" if level else "compiled without -O2")
    arguments = variables.get("CONFIG_ARGS")
    if arguments is not None and "--enable-optimizations" not in arguments and _DEBIAN not in schemes:
        return Build("configured without --enable-optimizations")
    return Build("")
