import pytest


@pytest.fixture(autouse=True)
def broker(halfmq_broker, settings):
    settings.HALFMQ = {**settings.HALFMQ, "URL": halfmq_broker.url}
