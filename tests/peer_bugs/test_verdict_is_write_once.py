"""The first verdict stands, whoever asks again and whatever for."""

from tests.peer_bugs.stage import COMMIT, MINUTE, ROLLBACK, Stage


def test_second_commit_gets_the_first_verdict_and_makes_no_second_message() -> None:
    """RocketMQ #5574 (also #7933): END_TRANSACTION finds the half by its log offset and looks for no verdict, so each
    COMMIT writes the message once more. Users saw orders consumed twice after a lost answer or an impatient retry.

    Here: every further COMMIT is answered with the first verdict and its position, over the same or another connection,
    one-way or not, before and after a power loss; consumers see one message.
    """
    stage = Stage()
    half = stage.half("order-1")
    first = stage.end(half, COMMIT)
    assert first.code == 0, f"COMMIT was refused: {first}"
    again = stage.end(half, COMMIT)
    elsewhere = stage.end(half, COMMIT, peer=stage.connect())
    stage.client.send(37, stage.end_ext(half, COMMIT), oneway=True)
    stage.pass_time(5 * MINUTE)  # past the window of recent verdicts
    late = stage.end(half, COMMIT)
    stage.power_fails()
    restarted = stage.end(half, COMMIT)
    assert stage.visible() == [b"one"], f"one COMMIT, repeated, made {len(stage.visible())} messages"
    for answer in (again, elsewhere, late, restarted):
        assert answer.ext.get("HMQ_REPEATED") == "true", f"a repeated COMMIT passed for a new one: {answer}"
        assert answer.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"], "the verdict moved"


def test_opposite_verdict_is_refused_and_changes_nothing() -> None:
    """RocketMQ #8158 and #2694: the order of verdicts is not looked at. A COMMIT that comes after a ROLLBACK publishes a
    message whose local transaction is undone; a ROLLBACK after a COMMIT is answered with success although consumers have
    the message. Users had payments for orders that do not exist, and services that believed something was taken back.

    Here: whoever comes second is told 604 and which verdict stands, also after a power loss; consumers see what the first
    verdict says.
    """
    stage = Stage()
    taken_back, kept = stage.half("order-1", b"taken back"), stage.half("order-2", b"kept")
    assert stage.end(taken_back, ROLLBACK).code == 0, "ROLLBACK was refused"
    assert stage.end(kept, COMMIT).code == 0, "COMMIT was refused"
    for life in ("first", "second"):
        late_commit, late_rollback = stage.end(taken_back, COMMIT), stage.end(kept, ROLLBACK)
        assert stage.visible() == [b"kept"], f"{life} life: consumers see {stage.visible()}"
        assert late_commit.code == 604, f"{life} life: COMMIT after ROLLBACK was confirmed: {late_commit}"
        assert late_rollback.code == 604, f"{life} life: ROLLBACK after COMMIT was confirmed: {late_rollback}"
        assert late_commit.ext["HMQ_VERDICT"] == "ROLLED_BACK", "the standing verdict is not told"
        assert late_rollback.ext["HMQ_VERDICT"] == "COMMITTED", "the standing verdict is not told"
        stage.power_fails()
