"""All targets by name."""

from typing import Final

from tests.fuzz import broker_targets, half_batch_targets, store_targets, wire_targets
from tests.fuzz.target import Target

_EVERY: Final = (*wire_targets.TARGETS, *store_targets.TARGETS, *half_batch_targets.TARGETS, *broker_targets.TARGETS)
ALL: Final[dict[str, Target]] = {target.name: target for target in _EVERY}
