import orders
import pytest


@pytest.fixture
def sessions(halfmq_client, tmp_path):
    return orders.connect(halfmq_client, f"sqlite:///{tmp_path}/orders.db")
