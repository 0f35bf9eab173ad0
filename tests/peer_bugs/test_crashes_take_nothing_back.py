"""What was answered is there after a crash, what is undecided too, and a transaction shows whole or not at all."""

from tests.peer_bugs.stage import COMMIT, DATA, MINUTE, ROLLBACK, SECOND, UNKNOWN, Half, Stage
from tests.support.faulty_disk import PowerLost

#: Disks that lose different things.
SEEDS = range(1, 7)


def test_crash_right_after_the_answer_does_not_ask_or_publish_again() -> None:
    """RocketMQ #2117 (also #4436, rocketmq-spring#598): that a half is settled is kept in memory for up to 3 s before it is
    written. A crash in between forgets it: the committed message is checked again, and published again, days later or
    after each restart.

    Here: power fails at the very moment at which COMMIT is answered. The verdict stands, nobody is asked, and what a
    consumer had seen is there, once.
    """
    for seed in SEEDS:
        stage = Stage(seed=seed)
        half = stage.half("order-1")
        opaque = stage.client.send(37, stage.end_ext(half, COMMIT))
        stage.life.loop.run_ready()
        while opaque not in stage.client.answers:
            assert stage.life.flush is not None
            assert stage.life.flush.run(), "COMMIT waits for a sync that nobody asked for"
            stage.life.loop.run_ready()
        first = stage.client.answers.pop(opaque)
        stage.power_fails()
        assert stage.undecided() == set(), f"seed {seed}: an acknowledged verdict is gone after the crash"
        assert stage.visible() == [b"one"], f"seed {seed}: consumers see {stage.visible()}"
        producer = stage.producer("orders-1")
        stage.pass_time(10 * MINUTE, 5 * SECOND)
        assert stage.checks(producer) == [], f"seed {seed}: a settled transaction was asked about"
        again = stage.end(half, COMMIT)
        assert again.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"], f"seed {seed}: the verdict moved"
        assert stage.visible() == [b"one"], f"seed {seed}: published again"


def test_prepared_transactions_are_there_after_every_restart() -> None:
    """JoyQueue (TransactionStoreManager, TransactionRecover): the map of open transactions is empty after a start, so
    recovery finds no iterator for any of them, decides "expired" and removes their files: each restart deletes all
    prepared transactions, those of committed orders too.

    Here: every undecided transaction is there after power losses with and without a checkpoint, and after everything but
    the log is deleted: same handle, same count of checks, same immunity; it is asked about and can be settled.
    """
    stage = Stage(checkpoint_interval_ms=5 * SECOND)
    one = stage.half("order-1", b"one")
    two = several(stage, "order-2", [b"two", b"three"])
    producer = stage.producer("orders-1")
    stage.pass_time(8 * SECOND)  # behind it there is a checkpoint that knows the two
    asked = {check.tx_id: check for check in stage.checks(producer)}
    assert set(asked) == {"order-1", "order-2"}, f"asked about {set(asked)}"
    stage.answers(producer, asked["order-1"], UNKNOWN)
    patient = stage.half("order-3", b"four", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    everything = {"order-1", "order-2", "order-3"}
    for life in range(4):
        stage.power_fails()
        assert stage.undecided() == everything, f"life {life}: a restart lost {everything - stage.undecided()}"
    derived = [path for path in stage.disk.image() if path.parent != DATA and path.parent.name != "log"]
    for path in derived:
        stage.disk.remove(path)
    stage.power_fails()
    assert derived, "there was nothing to delete beside the log"
    assert stage.undecided() == everything, f"the log alone has {stage.undecided()}"
    producer = stage.producer("orders-2")
    stage.pass_time(2 * MINUTE)
    asked = {check.tx_id: check for check in stage.checks(producer)}
    assert set(asked) == {"order-1", "order-2"}, f"after the restart asked about {set(asked)}"
    assert min(check.number for check in asked.values()) > 1, "the restart forgot how often they were asked"
    for half in (one, two, patient):
        assert stage.end(half, COMMIT).code == 0, f"{half.tx_id} cannot be committed after the restarts"
    assert sorted(stage.visible()) == sorted([b"one", b"two", b"three", b"four"]), f"visible: {stage.visible()}"


def test_settled_transactions_are_settled_after_every_restart() -> None:
    """JoyQueue (TransactionManager): COMMIT leaves no record and only forgets in memory; a restart that did read its files
    would find every committed transaction undecided, and publish it again.

    Here: after power losses nothing that was settled is undecided or asked about, nobody sees a message twice, and each
    verdict is told with its position to whoever repeats it.
    """
    stage = Stage()
    committed = [stage.half(f"order-{n}", b"%d" % n) for n in range(3)]
    rolled_back = stage.half("order-x", b"x")
    firsts = [stage.end(half, COMMIT) for half in committed]
    assert stage.end(rolled_back, ROLLBACK).code == 0, "ROLLBACK was refused"
    for life in range(2):
        stage.power_fails()
        assert stage.undecided() == set(), f"life {life}: {stage.undecided()} came back undecided"
        producer = stage.producer("orders-1")
        stage.pass_time(5 * MINUTE, 5 * SECOND)
        assert stage.checks(producer) == [], f"life {life}: settled transactions were asked about"
        for half, first in zip(committed, firsts, strict=True):
            again = stage.end(half, COMMIT)
            assert again.code == 0, f"life {life}: {again}"
            assert again.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"], f"life {life}: the verdict moved"
        assert stage.end(rolled_back, COMMIT).code == 604, f"life {life}: a rolled-back transaction was committed"
        assert sorted(stage.visible()) == [b"0", b"1", b"2"], f"life {life}: consumers see {stage.visible()}"


def test_commit_over_several_queues_shows_all_or_nothing_wherever_it_is_cut() -> None:
    """JoyQueue (TransactionManager.commit): a loop of writes, one for each partition group, and no marker: a failure half-way
    leaves a part of the transaction visible, and the retry writes that part again.

    Here: one record is the commit, however many topics and queues. Power fails at each step that the disk makes for it;
    consumers then see every message or none, and after a COMMIT that is sent again each of them once.
    """
    bodies = [b"a", b"b", b"c", b"d"]
    cut = whole = 0
    for step in range(1, 60):
        stage = Stage(seed=step)
        half = several(stage, "order-1", bodies)
        stage.disk.power_fails_after(step)
        try:
            answered = stage.end(half, COMMIT).code == 0
        except PowerLost:
            answered = False
        stage.power_fails()
        seen = everywhere(stage)
        assert seen in ([], bodies), f"cut at step {step}: a part of the transaction is visible: {seen}"
        assert seen == bodies or not answered, f"cut at step {step}: COMMIT was acknowledged and is gone"
        assert stage.end(half, COMMIT).code == 0, f"cut at step {step}: COMMIT sent again was refused"
        assert everywhere(stage) == bodies, f"cut at step {step}: after the retry consumers see {everywhere(stage)}"
        cut, whole = cut + (not answered), whole + answered
        if answered:
            break
    assert cut >= 2, f"COMMIT was cut only {cut} times"
    assert whole, "no COMMIT came through: take more steps"


def several(stage: Stage, tx_id: str, bodies: list[bytes]) -> Half:
    """One transaction of several messages over two topics; its first half, which END may name for all."""
    halves = []
    for index, body in enumerate(bodies):
        last = {"HMQ_TX_COUNT": str(len(bodies))} if index == len(bodies) - 1 else {}
        more = {"HMQ_TX_ID": tx_id, "HMQ_TX_INDEX": str(index), "UNIQ_KEY": f"{tx_id}.{index}", **last}
        topic = "T" if len(bodies) == 2 or index % 2 else "U"
        halves.append(stage.half(tx_id, body, topic=topic, **more))
    return halves[0]


def everywhere(stage: Stage) -> list[bytes]:
    return sorted(stage.visible("T") + stage.visible("U"))
