"""``Xid``: the name of a transaction branch in X/Open's distributed transaction processing, and the transaction id made of it."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from halfmq.errors import UsageError

#: Bytes of each of the two parts: ``MAXGTRIDSIZE`` and ``MAXBQUALSIZE`` of X/Open's ``xa.h``.
PART_BYTES_MAX: Final = 64
_FORMAT_MAX: Final = 2**31 - 1
_DIGEST_BYTES: Final = 24
_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.((?:[0-9a-f]{2}){1,64})\.((?:[0-9a-f]{2}){0,64})")


@dataclass(frozen=True, slots=True)
class Xid:
    """An xid: format id (0 to 2**31 - 1), global transaction id (1 to 64 bytes), branch qualifier (0 to 64 bytes).

    ``str(xid)`` is ``format.gtrid.bqual``, the last two in hex, which ``parse`` reads. Source: X/Open CAE Specification C193, "XA", 4.2.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes = b""

    def __post_init__(self) -> None:
        number = isinstance(self.format_id, int) and not isinstance(self.format_id, bool)
        if not number or not 0 <= self.format_id <= _FORMAT_MAX:
            raise UsageError(f"format_id={self.format_id!r}", hint=f"a whole number, 0 to {_FORMAT_MAX}")
        for name, part, least in (("gtrid", self.gtrid, 1), ("bqual", self.bqual, 0)):
            if not isinstance(part, bytes) or not least <= len(part) <= PART_BYTES_MAX:
                raise UsageError(f"{name}={part!r}", hint=f"{least} to {PART_BYTES_MAX} bytes")

    @property
    def tx_id(self) -> str:
        """The transaction id that ``Coordinator.prepare`` uses: always the same one for this xid, and another one for every other."""
        named = b"%d.%d." % (self.format_id, len(self.gtrid)) + self.gtrid + self.bqual
        return "xid." + hashlib.blake2b(named, digest_size=_DIGEST_BYTES).hexdigest()

    def __str__(self) -> str:
        return f"{self.format_id}.{self.gtrid.hex()}.{self.bqual.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Xid":
        """Inverse of ``str``: only what it writes, so that two texts are never one xid.

        Raises:
            UsageError: ``text`` is no such text.
        """
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise UsageError(
                f"{text!r} is not an xid", hint="format.gtrid.bqual, the last two in hex, as str(xid) writes it"
            )
        return cls(int(found[1]), bytes.fromhex(found[2]), bytes.fromhex(found[3]))
