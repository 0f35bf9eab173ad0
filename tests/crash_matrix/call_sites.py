"""The places in ``halfmq.store`` that change the disk, found in its source. The matrix must reach each of them."""

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import halfmq.store

_STORE = Path(halfmq.store.__file__).parent
#: Methods of a ``Disk`` or a ``File`` that change something.
_DISK_CALLS = frozenset({"rename", "remove", "remove_directory", "sync_directory", "make_directories", "lock"})
_FILE_CALLS = frozenset({"write", "sync", "allocate", "truncate"})
_DISKS = frozenset({"disk", "_disk"})
_FILES = frozenset({"file", "_file"})


class Site(NamedTuple):
    file: str
    line: int


class CallSite(NamedTuple):
    """A call that changes the disk. ``name``: file, function and called method, numbered; without line numbers, which change."""

    file: str
    name: str
    first_line: int
    last_line: int

    def holds(self, site: Site) -> bool:
        return site.file == self.file and self.first_line <= site.line <= self.last_line


def call_sites() -> list[CallSite]:
    """All call sites, by file and line."""
    found = []
    for path in sorted(_STORE.glob("*.py")):
        found += _of(path.name, ast.parse(path.read_text()))
    return found


def _of(file: str, module: ast.Module) -> list[CallSite]:
    found = []
    named: Counter[str] = Counter()
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            if isinstance(node.func, ast.Attribute) and _changes(node, node.func):
                name = f"{file} {function.name}: {ast.unparse(node.func)}"
                named[name] += 1
                number = f" ({named[name]})" if named[name] > 1 else ""
                found.append(CallSite(file, name + number, node.lineno, node.end_lineno or node.lineno))
    return found


def _changes(call: ast.Call, called: ast.Attribute) -> bool:
    on = called.value.attr if isinstance(called.value, ast.Attribute) else getattr(called.value, "id", "")
    if on in _DISKS:
        return called.attr in _DISK_CALLS or (
            called.attr == "open" and any(word.arg == "create" for word in call.keywords)
        )
    return on in _FILES and called.attr in _FILE_CALLS
