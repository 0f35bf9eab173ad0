"""What of a URL may be shown. A user pastes what he has, with a password in it, and errors end up in logs and tickets."""

import re
from typing import Final

_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,30}://)?")
#: Where the part ends that can only be names of servers.
_PARAMETERS: Final = re.compile(r"[?#]")
_HIDDEN: Final = "***"


def has_credentials(text: str) -> bool:
    """It names a user or a password, as in ``scheme://user:password@host``; or what looks like it, so that it is not shown."""
    return "@" in text


def shown_url(text: str) -> str:
    """``text`` for an error or a log, without user, password and parameters.

    With a user in it nothing but the scheme is shown: a password may hold any of the characters that end one.
    """
    scheme = _SCHEME.match(text)
    start = "" if scheme is None or scheme[1] is None else scheme[1]
    rest = text[scheme.end() :] if scheme is not None else text
    if has_credentials(text):
        return f"{start}{_HIDDEN}"
    servers = _PARAMETERS.split(rest, maxsplit=1)[0]
    return start + servers + (f"?{_HIDDEN}" if servers != rest else "")
