import billing
import pytest


@pytest.fixture
def app(halfmq_url, tmp_path):
    return billing.make_app(halfmq_url, f"sqlite:///{tmp_path}/billing.db")
