"""Bodies of halfmq's own requests and responses that are one JSON document each."""

from typing import Any, Generic, TypeVar

import msgspec

from halfmq.errors import ProtocolError

T = TypeVar("T")


class JsonBody(Generic[T]):
    """The body that is a document of one type. ``what`` begins the error: "a response to HMQ_STATS is"."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._what = what

    def encode(self, document: Any) -> bytes:
        """``document``: of the type, or what has the same JSON, such as a tuple for a list."""
        return msgspec.json.encode(document)

    def decode(self, body: bytes | bytearray | memoryview) -> T:
        """Inverse of ``encode``.

        Raises:
            ProtocolError: malformed.
        """
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"{self._what} malformed: {error}") from error
