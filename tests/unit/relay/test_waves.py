"""Which messages of a batch are sent together, and what stops which."""

from collections.abc import Sequence

from tests.unit.relay.targets import row

from halfmq.relay.publisher import OutboxMessage
from halfmq.relay.waves import Sent, publish_in_waves


class Script:
    """Answers each wave from ``refused`` (bodies) and ``lost``; ``waves``: the bodies of each."""

    def __init__(self, *, refused: str = "", lost: str = "", again: bool = False) -> None:
        self.refused, self.lost, self.again = refused, lost, again
        self.waves: list[str] = []

    async def send(self, wave: Sequence[OutboxMessage]) -> Sent:
        bodies = [one.body.decode() for one in wave]
        self.waves.append("".join(bodies))
        refused = {one.seq: "no" for one, body in zip(wave, bodies, strict=True) if body in self.refused}
        lost = {one.seq for one, body in zip(wave, bodies, strict=True) if body in self.lost}
        self.lost = "" if self.again else self.lost
        confirmed = frozenset(one.seq for one in wave) - refused.keys() - lost
        return Sent(confirmed, refused, unavailable="away" if lost and not self.again else "", again=self.again)


def rows(text: str) -> list[OutboxMessage]:
    """``"a1"``: body a, key 1; key 0: none."""
    return [row("t", word[0].encode(), word[1:].strip("0")) for word in text.split()]


def bodies(messages: list[OutboxMessage], seqs: object) -> str:
    return "".join(one.body.decode() for one in messages if one.seq in seqs)  # type: ignore[operator]


async def test_the_next_of_a_key_waits_and_others_do_not() -> None:
    script, messages = Script(), rows("a1 b2 c1 d0 e1 f2 g0")
    result = await publish_in_waves(messages, script.send)
    assert script.waves == ["abdg", "cf", "e"]
    assert bodies(messages, result.confirmed) == "abcdefg"
    assert not result.unavailable


async def test_after_a_target_did_not_answer_the_first_wave_is_one_message() -> None:
    script, messages = Script(), rows("a1 b2 c1 d0 e1 f2 g0")
    result = await publish_in_waves(messages, script.send, careful=True)
    assert script.waves == ["a", "bcdg", "ef"]
    assert bodies(messages, result.confirmed) == "abcdefg"
    lost = Script(lost="a")
    assert (await publish_in_waves(messages, lost.send, careful=True)).unavailable
    assert lost.waves == ["a"]


async def test_a_refused_message_stops_its_key_only() -> None:
    script, messages = Script(refused="c"), rows("a1 b2 c1 d0 e1 f2 g1")
    result = await publish_in_waves(messages, script.send)
    assert script.waves == ["abd", "cf"]
    assert bodies(messages, result.confirmed) == "abdf"
    assert bodies(messages, result.refused) == "c"


async def test_nothing_is_sent_after_an_unknown_outcome() -> None:
    script, messages = Script(lost="b"), rows("a1 b2 c1 d2")
    result = await publish_in_waves(messages, script.send)
    assert script.waves == ["ab"]
    assert (bodies(messages, result.confirmed), result.unavailable) == ("a", "away")


async def test_what_was_certainly_not_published_comes_in_the_next_wave_before_later_ones_of_its_key() -> None:
    script, messages = Script(lost="b", again=True), rows("a1 b2 c1 d2")
    result = await publish_in_waves(messages, script.send)
    assert script.waves == ["ab", "bc", "d"]
    assert bodies(messages, result.confirmed) == "abcd"


async def test_it_ends_if_nothing_of_a_wave_was_published() -> None:
    script, messages = Script(lost="ab", again=True), rows("a1 b2")
    result = await publish_in_waves(messages, script.send)
    assert (script.waves, result.confirmed) == (["ab"], frozenset())


async def test_a_target_that_keeps_order_itself_gets_messages_of_a_key_at_once() -> None:
    script, messages = Script(), rows("a1 b1 c1 d2 e1")
    await publish_in_waves(messages, script.send, lambda earlier, later: later.body != b"c")
    assert script.waves == ["abd", "ce"]


async def test_an_empty_batch_is_published() -> None:
    result = await publish_in_waves([], Script().send)
    assert (result.confirmed, result.refused, result.unavailable) == (frozenset(), {}, "")
