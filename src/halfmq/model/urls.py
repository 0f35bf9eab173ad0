"""Hosts in the addresses of servers, and which part of a URL may be shown: users paste URLs with passwords, and errors end up in logs and tickets."""

import re
from typing import Final

_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,30}://)?")
#: Where the part with the names of servers ends.
_PARAMETERS: Final = re.compile(r"[?#]")
_HIDDEN: Final = "***"


def server_host(text: str) -> str:
    """The host of ``host:port`` as the system's resolver takes it: an IPv6 address without brackets, and with ``%`` before its zone, the interface
    of a link-local address. URLs write ``%25`` (RFC 6874).
    """
    address, percent, zone = text.removeprefix("[").removesuffix("]").partition("%")
    encoded = zone.startswith("25") and len(zone) > 2
    return f"{address}{percent}{zone.removeprefix('25') if encoded else zone}"


def has_credentials(text: str) -> bool:
    """Whether it contains a user or a password, as in ``scheme://user:password@host``, or something that looks like it."""
    return "@" in text


def shown_url(text: str) -> str:
    """``text`` for an error or a log, without user, password and parameters.

    If it contains a user, only the scheme is shown: a password may contain any of the delimiters.
    """
    scheme = _SCHEME.match(text)
    start = "" if scheme is None or scheme[1] is None else scheme[1]
    rest = text[scheme.end() :] if scheme is not None else text
    if has_credentials(text):
        return f"{start}{_HIDDEN}"
    servers = _PARAMETERS.split(rest, maxsplit=1)[0]
    return start + servers + (f"?{_HIDDEN}" if servers != rest else "")
