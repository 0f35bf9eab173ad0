import pytest
import shop


@pytest.fixture
def api(halfmq_url, tmp_path):
    return shop.make_api(halfmq_url, f"sqlite+aiosqlite:///{tmp_path}/shop.db")
