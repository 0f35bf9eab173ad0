"""The setting ``HALFMQ`` of a Django project."""

from typing import Any, Final, NamedTuple

from django.conf import settings

from halfmq.errors import UsageError

_EXAMPLE: Final = 'HALFMQ = {"URL": "rocketmq://127.0.0.1:9876", "GROUP": "orders"}'


class Configuration(NamedTuple):
    """``HALFMQ``, with what it leaves out."""

    #: Of the name service.
    url: str
    #: The producer group. All processes that share it share their databases too.
    group: str
    #: Whether web workers answer checks. Otherwise `manage.py halfmq_checks` must run.
    answers_checks: bool
    #: Aliases of the databases that have a marker table.
    databases: tuple[str, ...]
    #: More arguments of ``halfmq.Client``.
    options: dict[str, Any]


#: The type of each key, and what a value looks like.
_KEYS: Final[dict[str, tuple[Any, str]]] = {
    "URL": (str, _EXAMPLE),
    "GROUP": (str, _EXAMPLE),
    "ANSWER_CHECKS": (bool, '"ANSWER_CHECKS": False'),
    "DATABASES": ((list, tuple), '"DATABASES": ["default"]'),
    "OPTIONS": (dict, '"OPTIONS": {"timeout": 5}'),
}


def configuration() -> Configuration:
    """Read the setting; each call reads it anew, since tests override settings.

    Raises:
        UsageError: it is missing, or has a wrong key or value.
    """
    given = getattr(settings, "HALFMQ", None)
    if not isinstance(given, dict):
        raise UsageError("the setting HALFMQ is missing, or no dictionary", hint=_EXAMPLE)
    for name, value in given.items():
        if name not in _KEYS:
            raise UsageError(f"HALFMQ has an unknown key {name!r}", hint=f"one of {', '.join(_KEYS)}")
        kind, example = _KEYS[name]
        if not isinstance(value, kind):
            raise UsageError(f"HALFMQ[{name!r}] is {type(value).__name__}", hint=example)
    for name in ("URL", "GROUP"):
        if not given.get(name):
            raise UsageError(f"HALFMQ has no {name!r}", hint=_EXAMPLE)
    return Configuration(
        given["URL"],
        given["GROUP"],
        given.get("ANSWER_CHECKS", True),
        tuple(given.get("DATABASES", ("default",))),
        dict(given.get("OPTIONS", {})),
    )
