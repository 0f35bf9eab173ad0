"""What a half message was answered with is what END may name for ever, whatever became of bytes and connections since."""

from tests.peer_bugs.stage import COMMIT, HOUR, MINUTE, SECOND, SEGMENT_BYTES, UNKNOWN, Stage


def test_verdict_with_the_first_handle_settles_what_was_checked_and_moved_since() -> None:
    """RocketMQ #8158: a check appends the half again at a new offset, and a verdict names the old one, so the two never
    meet: checks go on to the maximum although the producer has answered, and then the message is thrown away.

    Here: a half that was asked about and then carried into a newer segment by a trim is settled by the offsets of its
    first answer; nobody is asked again, and consumers see one message.
    """
    stage = Stage(retention_bytes=2 * SEGMENT_BYTES, retention_check_ms=500, checkpoint_interval_ms=SECOND)
    producer = stage.producer("orders-1")
    half = stage.half("order-1")
    stage.pass_time(7 * SECOND)
    asked = stage.checks(producer)
    assert [check.tx_id for check in asked] == ["order-1"], f"asked {asked} after the immunity"
    stage.answers(producer, asked[0], UNKNOWN)
    for _ in range(80):
        stage.send()
    stage.pass_time(5 * SECOND)
    assert stage.life.state.log_start > half.offset, "the test is to trim the place where the half was first stored"
    stage.checks(producer)
    answer = stage.end(half, COMMIT)
    assert answer.code == 0, f"the first handle is no good any more: {answer}"
    stage.pass_time(30 * MINUTE, 5 * SECOND)
    assert stage.checks(producer) == [], "asked about although the producer has answered"
    assert stage.visible() == [b"one"], f"consumers see {stage.visible()}"


def test_commit_is_taken_from_anybody_who_has_the_handle_however_late() -> None:
    """RocketMQ's proxy keeps what it knows of a transaction in its own memory, for 30 s, and the first END takes it out: a
    slow local transaction, a restart of the proxy, another proxy or a retried COMMIT get "transaction data not found".
    Users' commits then took effect only after a check, tens of seconds late (#8313), or not at all.

    There is no state at a connection here, and none that a restart forgets: END is taken over another connection, from
    somebody who never said who it is, an hour later and after a power loss; and repeated as often as wanted.
    """
    stage = Stage()
    sender = stage.connect()
    half = stage.half("order-1", peer=sender)
    stage.leaves(sender)
    stage.pass_time(HOUR, MINUTE)
    stage.power_fails()
    first = stage.end(half, COMMIT, peer=stage.connect())
    assert first.code == 0, f"the gateway forgot the transaction: {first}"
    stage.pass_time(HOUR, MINUTE)
    again = stage.end(half, COMMIT, peer=stage.connect())
    assert again.code == 0, f"the gateway forgot the transaction after its first END: {again}"
    assert again.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"], "the verdict moved"
    assert stage.visible() == [b"one"], f"consumers see {stage.visible()}"
