"""Signed requests, as of RocketMQ's access control: the user is named in the header, and an HMAC over fields and body proves it.

Neither the code nor the number of the request is signed, and there is no nonce: who reads a signed request can send it again, also with
another code. TLS keeps others from reading. Source: RocketMQ ``AclClientRPCHook``, ``AclUtils.combineRequestContent``, ``AclSigner``.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

import msgspec

from halfmq.wire.remoting.frame import assemble

EXT_USER: Final = "AccessKey"
EXT_SIGNATURE: Final = "Signature"
_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.encode


def signature(fields: Mapping[str, str], body: bytes | memoryview, secret: bytes) -> str:
    """Of a request with these fields, as text; among them the user, and not a signature."""
    values = "".join([fields[name] for name in sorted(fields) if name != EXT_SIGNATURE])
    return b64encode(hmac.digest(secret, values.encode() + bytes(body), "sha1")).decode()


def is_signature(given: str, fields: Mapping[str, str], body: bytes | memoryview, secret: bytes) -> bool:
    """Whether ``given`` is the signature of such a request; compared without its time saying where they differ."""
    return hmac.compare_digest(given.encode(), signature(fields, body, secret).encode())


def sign_frame(frame: bytes, user: str, secret: bytes) -> bytes:
    """A complete frame of ours, which has a JSON header, with user and signature."""
    end = 8 + int.from_bytes(frame[5:8], "big")
    header = _decode(frame[8:end])
    fields = header["extFields"]
    fields[EXT_USER] = user
    body = frame[end:]
    fields[EXT_SIGNATURE] = signature(fields, body, secret)
    return assemble(_encode(header), body)
