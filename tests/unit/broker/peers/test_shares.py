"""What all share: one user has three quarters at most, over all its connections; who has said nothing counts as its address."""

import pytest
from tests.support.services import FakePeer

from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.model.share import share_of


def peer(host: str = "10.0.0.7", user: str = "", number: int = 1) -> Peer:
    return FakePeer(number, user=user, host=host)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("most", "one"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (256, 192), (1 << 30, 3 << 28)]
)
def test_one_has_three_quarters_and_at_least_one(most: int, one: int) -> None:
    assert share_of(most) == one


def test_a_peer_is_its_users_or_else_its_addresss() -> None:
    assert owner_of(peer(user="shop")) == owner_of(peer("10.0.0.8", "shop", 2)) == "user 'shop'"
    assert owner_of(peer()) == owner_of(peer(number=2)) == "address 10.0.0.7"
    assert owner_of(peer("2001:db8::1")) == owner_of(peer("2001:db8::ffff")) == "address 2001:db8::"
    assert owner_of(peer("2001:db8:0:1::1")) != owner_of(peer("2001:db8::1"))
    nameless = peer()
    nameless.address = "?"
    assert owner_of(nameless) == "address ?"


def test_a_user_cannot_take_the_name_of_an_address() -> None:
    assert owner_of(peer(user="10.0.0.7")) != owner_of(peer())


def test_refusals_say_what_is_shared_and_who_has_it() -> None:
    shares = Shares("places")
    for _ in range(6):
        assert shares.refusal("user 'flood'", 8) is None
        shares.add("user 'flood'")
    assert shares.refusal("user 'flood'", 8) == "user 'flood' has 6 of 8 places, and one user may have 6"
    for _ in range(2):
        assert shares.refusal("address 10.0.0.7", 8) is None
        shares.add("address 10.0.0.7")
    assert shares.refusal("address 10.0.0.7", 8) == "there are 8 of 8 places, 6 of them of user 'flood'"
    shares.add("user 'flood'", -1)
    assert shares.refusal("address 10.0.0.7", 8) is None
    assert shares.refusal("address 10.0.0.7", 8, 2) == "there are 7 of 8 places, 5 of them of user 'flood'"
    shares.add("address 10.0.0.7", -2)
    shares.add("user 'flood'", -5)
    assert (shares.taken, shares._of) == (0, {})
    assert shares.refusal("address 10.0.0.7", 0) == "address 10.0.0.7 has 0 of 0 places, and one address may have 0"
