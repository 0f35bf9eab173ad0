"""What the judge of queries excuses: only what a power loss without durability explains."""

from collections import Counter

import pytest

from tests.simulation.query_promises import Part, QueryPromises, Wish

TX = "batches.q0.1"
WISH = Wish(0, "", "", (("", 1, 1, 7),), asked_us=300)


@pytest.fixture
def promises() -> QueryPromises:
    made = QueryPromises(Counter(), segment_bytes=65_536, decisions_max=100, runs_max=8)
    made.prepare_asked(TX, 0, "", "", 0, Part("Alpha", 0, ("m",), 7), 100)
    made.prepared(TX, 0, "", "", 0, 64, 100, 200)
    return made


def test_a_transaction_that_nobody_ended_must_be_settled(promises: QueryPromises) -> None:
    promises.forget_from(5_000, 400)
    assert not promises.has_lost_its_end(TX)
    assert not promises.has_lost_its_end("batches.of.nobody")


def test_an_end_that_is_before_the_loss_stands(promises: QueryPromises) -> None:
    promises.decide_asked(TX, WISH)
    promises.decided(TX, WISH, 4_000, repeated=False, now_us=350)
    promises.forget_from(5_000, 400)
    assert not promises.has_lost_its_end(TX)


@pytest.mark.parametrize("answered_us", [350, 450])
@pytest.mark.parametrize("commits", [True, False])
def test_an_end_that_was_acknowledged_and_lost_is_not_sent_again(
    promises: QueryPromises, answered_us: int, commits: bool
) -> None:
    def end(asked_us: int, now_us: int) -> None:
        wish = WISH._replace(asked_us=asked_us)
        if commits:
            promises.decide_asked(TX, wish)
            promises.decided(TX, wish, 6_000, repeated=False, now_us=now_us)
        else:
            promises.rollback_asked(TX, 0, "")
            promises.rolled_back(TX, 0, "", asked_us, now_us)

    if answered_us < 400:
        end(300, answered_us)
    promises.forget_from(5_000, 400)
    if answered_us > 400:  # the response was under way
        end(300, answered_us)
    assert promises.has_lost_its_end(TX)
    end(500, 600)
    assert not promises.has_lost_its_end(TX), "this end is after the loss"
