"""docs/metrics.md has every series that the broker and a relay have, and no other."""

from halfmq.broker.metrics.families import FAMILIES
from halfmq.relay.metrics import FAMILIES as RELAY
from tests.documents.metrics_page import PAGE, PARTS
from tests.support.transactions_page import made


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == made(text, PARTS), "run: python -m tests.documents.metrics_page"
    assert all(f"`{name}`" in text for name in (*FAMILIES, *RELAY))
