import pytest
from demo.__main__ import parse
from demo.data import BASKETS_IN_ALL


def test_defaults_are_what_the_issue_of_a_demo_promises() -> None:
    settings = parse([])
    assert (settings.baskets, settings.db, settings.services) == (20_000, "sqlite", 2)
    assert (settings.order_kills, settings.broker_kills, settings.with_spark) == (5, 2, True)


def test_all_baskets_come_with_more_kills() -> None:
    settings = parse(["--baskets", "all"])
    assert (settings.baskets, settings.order_kills, settings.broker_kills) == (None, 20, 5)


def test_more_baskets_than_there_are_is_all_there_are() -> None:
    assert parse(["--baskets", "999999999"]).baskets == BASKETS_IN_ALL


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parse(["--baskets", text])
