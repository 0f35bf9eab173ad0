"""Each target of the relay."""

import pytest
from tests.unit.relay.targets import TARGETS, Target


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
