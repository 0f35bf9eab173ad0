"""Names for brokers, in a file of the operator: which one a command talks to without ``--url``.

In this order: ``--url``, ``--context`` or ``HALFMQ_CONTEXT``, ``HALFMQ_URL``, and the context that ``halfmq context use`` named.
"""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import msgspec
from msgspec import Struct, field

from halfmq.errors import EnvironmentFailed, UsageError

#: What commands read without ``--url``.
URL_VARIABLE: Final = "HALFMQ_URL"


class Contexts(Struct):
    """What the file has, as JSON."""

    #: By name.
    urls: dict[str, str] = field(default_factory=dict)
    #: The one in use; "": none.
    current: str = ""


def place() -> Path:
    """The file: ``$XDG_CONFIG_HOME/halfmq/contexts.json``, by default below ``~/.config``."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "halfmq" / "contexts.json"


def load() -> Contexts:
    """Those that were saved; none if there is no file. Raises EnvironmentFailed: it cannot be read."""
    path = place()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "mend or remove it; `halfmq context add` makes another one"
        raise EnvironmentFailed(f"contexts file {path}: {error}", hint=hint) from error


def save(contexts: Contexts) -> None:
    """Replace the file, which nobody else may read. Raises EnvironmentFailed."""
    path = place()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as made:
            made.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
        Path(made.name).replace(path)
    except OSError as error:
        raise EnvironmentFailed(f"contexts file {path}: {error}", hint="a directory that you may write to") from error


def apply(name: str) -> None:
    """Let commands without ``--url`` talk to the broker of context ``name``; "": of the one in use, unless HALFMQ_URL names a broker.

    Raises:
        UsageError: there is no such context.
        EnvironmentFailed: as ``load``.
    """
    if not name and os.environ.get(URL_VARIABLE):
        return
    contexts = load()
    chosen = name or contexts.current
    if not chosen:
        return
    url = contexts.urls.get(chosen)
    if url is None:
        known = ", ".join(sorted(contexts.urls)) or "none"
        raise UsageError(f"there is no context {chosen!r}", hint=f"known: {known}; see `halfmq context add`")
    os.environ[URL_VARIABLE] = url
