"""Verification of the payload of a half batch, without interruption."""

from typing import Any

from halfmq.model.half_batch import Verified, verification
from tests.support.steps import result_of


def verify_payload(payload: bytes, messages: int, **options: Any) -> Verified | str:
    """The result of ``verification``, which a broker runs in turns of its loop."""
    return result_of(verification(payload, messages, **options))
