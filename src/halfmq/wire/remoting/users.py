"""Commands of halfmq for users (``model.users``): who a connection is, and what administrators do about users.

    HMQ_LOGIN        29027  ext ``user``
        response  code 0, ext ``nonce``: for one proof on this connection
    HMQ_LOGIN        29027  ext ``user``, ``nonce``: one of the client's own, ``proof``: ``client_proof`` of both
        response  code 0, ext ``proof``: the server's. From now on the connection is this user's, whatever is signed. 16: not accepted
    HMQ_SET_USER     29028  body JSON ``UserChange``, also to make a user
        response  code 0; body JSON ``NewSecret``; 29: there is such a user already; 1: there is none; 2: no space for another one
    HMQ_USERS        29029  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``UserInfo``, ...]
    HMQ_REMOVE_USER  29030  ext ``user``, ``reason``
        response  code 0; 1: no such user; 2: nobody else is an administrator

Response code 16: not allowed; 29: an invalid field. RocketMQ responds with 3. A broker without users answers HMQ_LOGIN with code 2.

A nonce is 32 random bytes, written in hex. The proof is an HMAC-SHA-256 with the secret; no secret is sent. Pure functions.
"""

import hmac
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from halfmq import limits
from halfmq.model.text_fields import Fields
from halfmq.model.users import UserLimits
from halfmq.wire.remoting.fields import JsonBody

NONCE_BYTES: Final = 32
#: Begins the text of code 2 in the response of a broker without users.
NO_USERS: Final = "this broker has no users"
#: What the two proofs are of, so that one is not the other's.
_CLIENT: Final = b"halfmq login 1 client"
_SERVER: Final = b"halfmq login 1 server"

#: The broker checks that it is long enough, or empty.
_SecretText = Annotated[str, Meta(max_length=limits.SECRET_CHARS_MAX)]


class LoginFields(Fields, gc=False):
    """HMQ_LOGIN. Without ``proof`` it asks for a nonce."""

    user: str = ""
    nonce: str = ""
    proof: str = ""


class LoginReply(Fields, gc=False):
    """The response to HMQ_LOGIN: ``nonce``, or ``proof``."""

    nonce: str = ""
    proof: str = ""


class RemoveUserFields(Fields, gc=False):
    """HMQ_REMOVE_USER."""

    user: str = ""
    reason: str = ""


class _Hidden(Struct, gc=False):
    """Its repr shows no field: one of them is a secret, and a traceback may show variables."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class UserChange(_Hidden, gc=False, forbid_unknown_fields=True):
    """Request body of HMQ_SET_USER. What is None stays as it is, or is empty for a new user."""

    user: str
    #: The user must not exist yet; otherwise it must.
    is_new: bool
    reason: str = ""
    permissions: Annotated[list[str], Meta(max_length=limits.PERMISSIONS_MAX)] | None = None
    limits: UserLimits | None = None
    #: Give the user a new secret: this one, or, if it is empty, one that the broker makes. A new user always gets one.
    secret: _SecretText | None = None
    #: How long the secret before the new one stays valid, seconds.
    old_secret_s: Annotated[int, Meta(ge=0, le=31_622_400)] = 0
    #: For the HTTP port; "" takes it away.
    password: _SecretText | None = None


class NewSecret(_Hidden, gc=False):
    """Response body of HMQ_SET_USER: the secret that the broker made, which nobody is told again; "": it made none."""

    secret: str


class UserInfo(Struct, gc=False):
    """A user in the response body of HMQ_USERS. No secret is shown."""

    user: str
    permissions: list[str]
    limits: UserLimits
    #: How many secrets are valid: two for a time after a rotation.
    secrets: int
    has_password: bool
    #: At the moment.
    connections: int


CHANGE: Final = JsonBody(UserChange, "a request HMQ_SET_USER is")
NEW_SECRET: Final = JsonBody(NewSecret, "a response to HMQ_SET_USER is")
USERS: Final = JsonBody(list[UserInfo], "a response to HMQ_USERS is")


def client_proof(user: str, secret: bytes, server_nonce: str, client_nonce: str) -> str:
    """That the client knows the secret."""
    return _proof(_CLIENT, user, secret, server_nonce, client_nonce)


def server_proof(user: str, secret: bytes, server_nonce: str, client_nonce: str) -> str:
    """That the server knows it, too."""
    return _proof(_SERVER, user, secret, server_nonce, client_nonce)


def is_proof(given: str, expected: str) -> bool:
    """Compared without its time saying where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _proof(who: bytes, user: str, secret: bytes, server_nonce: str, client_nonce: str) -> str:
    text = b"\0".join((who, user.encode(), server_nonce.encode(), client_nonce.encode()))
    return hmac.digest(secret, text, "sha256").hex()
