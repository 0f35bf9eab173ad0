"""What the programs must have seen. ``ours``: also what only halfmq promises; a stock broker is measured without it."""

from collections import Counter
from itertools import pairwise
from typing import Any

Result = dict[str, Any]


def transactions(result: Result, count: int, *, ours: bool, queues_move: bool = False) -> None:
    """Each committed message once in the log and seen, none that was rolled back, one check for each UNKNOWN.

    ``queues_move``: consumers look again and again whose queues are whose; on a busy machine some change hands.
    """
    assert result["sendErrors"] == []
    assert result["executed"] == count
    committed, rolled_back = set(result["committed"]), set(result["rolledBack"])
    assert len(committed) + len(rolled_back) == count
    assert len(committed) == count * 7 // 10

    log = Counter(message["id"] for message in result["log"])
    assert set(log) == committed, "the log holds what was committed, and nothing else"
    first, second = result["seen"]
    assert set(first) | set(second) == committed
    assert not rolled_back & (set(first) | set(second))
    assert result["balanced"], "both consumers got two of the four queues"
    assert len(set(first)) > count // 20
    assert len(set(second)) > count // 20
    for message in result["log"]:
        assert message["transactionId"] == message["id"]
        assert message["sysFlag"] & 12 == 8
        assert message["transactional"] == "true"

    waiting = count // 5
    assert result["unknownAnswers"] >= waiting + waiting // 5
    if not ours:
        return
    # A stock broker shows some twice when a decision and a check cross, delivers again while consumers come and go,
    # drops the user's flag of what was checked, and asks more often than it was told UNKNOWN.
    assert {identity: times for identity, times in log.items() if times != 1} == {}
    # The first message is consumed before the second consumer joins; its queue may change hands before its offset
    # was committed, and then it comes twice. Nothing else may.
    numbers = {message["id"]: message["number"] for message in result["log"]}
    twice = {
        numbers[identity]: (first.count(identity), second.count(identity))
        for identity, times in Counter(first + second).items()
        if times > 1
    }
    assert queues_move or set(twice) <= {"0"}, f"consumed more than once, by the first and the second consumer: {twice}"
    assert {message["number"]: message["flag"] for message in result["log"]} == {
        str(number): number for number in map(int, (message["number"] for message in result["log"]))
    }
    # Without the push (40) the first consumer would hear of the second after 20 s, at its next rebalance.
    assert result["balancedMs"] < 15_000
    assert result["checks"] == result["unknownAnswers"] == waiting + waiting // 5
    assert {tuple(times) for times in result["checkTimes"].values()} == {("1",), ("1", "2")}
    assert all(message["preparedOffset"] > 0 for message in result["log"])


def sends(result: Result) -> None:
    assert result["asyncAnswered"]
    assert result["asyncFailures"] == []
    assert result["answeredQueue"] == result["chosenQueue"]
    assert (result["batchIds"], result["batchUniqueIds"]) == (50, 50)
    messages = {message["text"]: message for message in result["messages"]}
    texts = Counter(message["text"] for message in result["messages"])
    expected = ["sync", "chosen", "large", "special", "oneway"]
    expected += [f"async{number}" for number in range(10)] + [f"batch{number}" for number in range(50)]
    assert texts == Counter(expected)
    assert messages["chosen"]["offset"] == result["chosenOffset"]
    batch = [messages[f"batch{number}"] for number in range(50)]
    first = result["batchFirstOffset"]
    assert [message["offset"] for message in batch] == list(range(first, first + 50))
    assert {message["queue"] for message in batch} == {result["chosenQueue"]}
    assert len({message["id"] for message in result["messages"]}) == 65
    assert messages["special"]["properties"]["name"] == 'caf\u00e9 "quoted" \\ \U0001f600'
    assert messages["special"]["flag"] == 77
    assert messages["sync"]["keys"] == "sync"
    assert {message["bornHost"] for message in result["messages"]} == {"127.0.0.1"}


def pull(result: Result, *, ours: bool) -> None:
    assert sorted(map(int, result["texts"])) == list(range(40))
    # The first send of a new topic goes wherever the route of the template led.
    assert result["min"] == 0
    assert 5 <= result["max"] <= 15
    assert result["beforeAll"] == 0
    # Releases differ in whether a time behind the last message means it or the place after it.
    assert result["afterAll"] in ({result["max"]} if ours else {result["max"] - 1, result["max"]})
    assert 0 <= result["earliestMs"] < 60_000
    assert result["atEnd"] == "NO_NEW_MSG"
    assert result["beyond"] == "OFFSET_ILLEGAL"
    assert result["beyondNext"] == result["max"]
    assert result["noTag"] == "NO_MATCHED_MSG"
    assert result["committed"] == 7
    assert (result["waited"], result["waitedFor"]) == ("FOUND", "woken")
    assert 1_400 <= result["waitedMs"] < 5_000


def tags(result: Result) -> None:
    """ "Aa" and "BB" have one hash code: the broker may hand both out, the client must see only what it wants."""
    assert Counter(result["some"]) == Counter(f"{tag}{number}" for tag in ("Aa", "C") for number in range(5))
    everything = [f"{tag}{number}" for tag in ("Aa", "BB", "C", "D", "none") for number in range(5)]
    assert Counter(result["all"]) == Counter(everything)


def delay(result: Result) -> None:
    seen = {message["text"]: message for message in result["seen"]}
    assert set(seen) == {"first", "level0", "level1", "level2"}
    assert len(result["seen"]) == 4
    # Never early; how late depends on the machine, so the upper bounds only tell it from a level too far.
    assert seen["level0"]["ms"] < 4_000
    assert 900 <= seen["level1"]["ms"] < 4_900
    assert 4_900 <= seen["level2"]["ms"] < 9_900


def lookup(result: Result) -> None:
    assert result["byOffsetId"] == "wanted"
    assert result["byUniqueId"] == "wanted"
    assert result["key-1"] == result["key-2"] == ["wanted"]
    assert result["key-3"] == []
    assert result["COMMIT_MESSAGE by key"] == ["COMMIT_MESSAGE"]
    assert result["COMMIT_MESSAGE by unique id"] == "COMMIT_MESSAGE"
    for invisible in ("ROLLBACK_MESSAGE", "UNKNOW"):
        assert result[f"{invisible} by key"] == []
        assert result[f"{invisible} by unique id"] is None


def restart(result: Result) -> None:
    assert sorted(map(int, result["first"])) == list(range(40))
    assert sorted(map(int, result["second"])) == list(range(40, 60)), "the second goes on where the first was"


def retry(result: Result) -> None:
    by_text: dict[str, list[Any]] = {"fine": [], "later": [], "dead": []}
    for message in result["seen"]:
        by_text[message["text"]].append(message)
    assert [message["reconsumeTimes"] for message in by_text["fine"]] == [0]
    assert [message["reconsumeTimes"] for message in by_text["later"]] == [0, 1]
    assert [message["reconsumeTimes"] for message in by_text["dead"]] == [0, 1, 2]
    for text, messages in by_text.items():
        assert len({message["id"] for message in messages}) == 1, f"a copy of {text} keeps its unique id"
        assert len({message["topic"] for message in messages}) == 1, "the client sees the topic it subscribed to"
        for earlier, later in pairwise(messages):
            assert later["at"] - earlier["at"] >= 900, "delay level 1 is a second"
    assert result["found"]
    (dead,) = result["dead"]
    assert dead["text"] == "dead"
    assert dead["id"] == by_text["dead"][0]["id"]
    assert dead["properties"]["RETRY_TOPIC"] == by_text["dead"][0]["topic"]


def orderly(result: Result) -> None:
    assert result["suspended"] == 8
    for order, steps in result["steps"].items():
        # A queue that changes its owner may deliver again from its last committed offset; never out of order.
        assert _without_repeats(steps) == list(range(12)), f"order {order}: {steps}"
    assert len(result["steps"]) == 8
    assert {name for names in result["consumersOfQueue"].values() for name in names} == {"consumer0", "consumer1"}


def _without_repeats(steps: list[int]) -> list[int]:
    kept: list[int] = []
    for place, step in enumerate(steps):
        if step in kept:
            continue
        assert not kept or step == kept[-1] + 1, f"step {step} at {place} after {kept}"
        kept.append(step)
    return kept


def trace(result: Result, *, ours: bool) -> None:
    assert sorted(result["seen"]) == [f"m{number}" for number in range(5)]
    fields = [record.split("|") for record in result["records"]]
    assert {parts[5] for parts in fields if parts[0] == "Pub"} == set(result["ids"])
    if not ours:
        return  # a stock broker of 4.9 stores no region, and newer clients drop the trace of what has none
    before = [parts for parts in fields if parts[0] == "SubBefore"]
    assert Counter(parts[5] for parts in before) == Counter(result["ids"])
    assert {parts[2] for parts in before} == {"DefaultRegion"}
    after = [parts for parts in fields if parts[0] == "SubAfter"]
    assert Counter(parts[2] for parts in after) == Counter(result["ids"])
    assert {parts[4] for parts in after} == {"true"}


def request(result: Result) -> None:
    assert result["replied"] == "SEND_OK"
    assert [result[f"reply{number}"] for number in range(5)] == [True] * 5
    # The message that was no request: nobody waits for a reply to it, and the replier learns that.
    assert "REPLY_TOPIC" in result["replyError"]


def assigned(result: Result) -> None:
    if result["offered"]:  # from 5.0 on
        assert {text for text in result["seen"] if text.startswith("m")} == {f"m{number}" for number in range(40)}
        first, second = result["queues"].values()
        assert (set(first) | set(second), set(first) & set(second)) == ({0, 1, 2, 3}, set())


def admin(result: Result, *, ours: bool) -> None:
    """Read by the classes that administration tools read answers with."""
    behind = 10 - result["done"]
    assert (result["behind"], result["behindInTopic"], result["consumerOffset"]) == (behind, behind, result["done"])
    assert result["behindInAll"] >= behind, "other programs run beside this one"
    assert sum(result["ends"].values()) == 10
    assert (result["consumer"], result["producer"]) == (result["consumerId"], result["producerId"])
    assert result["consumeType"] == "CONSUME_ACTIVELY"
    assert result["saysItself"], "the broker asks the consumer itself"
    assert result["groupIsKnown"]
    assert result["consumedBy"]
    assert result["ordered"]
    if ours:  # a stock broker counts in spans, and has seen nothing yet
        assert result["putTps"] == 3
        assert result["put"] >= result["counted"] == 10


def feature(program: str, result: Result, *, ours: bool) -> None:
    match program:
        case "Sends":
            sends(result)
        case "Pull":
            pull(result, ours=ours)
        case "Tags":
            tags(result)
        case "Delay":
            delay(result)
        case "Lookup":
            lookup(result)
        case "Restart":
            restart(result)
        case "Retry":
            retry(result)
        case "Orderly":
            orderly(result)
        case "Trace":
            trace(result, ours=ours)
        case "Request":
            request(result)
        case "Assigned":
            assigned(result)
        case "Admin":
            admin(result, ours=ours)
        case _:
            raise AssertionError(f"nobody says what {program} must see")
