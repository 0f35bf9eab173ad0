"""The sink with ``guarantee=atLeastOnce`` through Spark: nothing is missing, whatever fails, and what is repeated has the ids of before.

The broker here drops no repetitions, as RocketMQ's does; on that one: ``tests/compat/test_spark_rocketmq.py``.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.support import sink_driver, stalling_sink
from tests.support.served import Served
from tests.support.sink_runs import arrow, options
from tests.support.spark_queries import QueryFailed

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import at_least_once

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Two batches.
ROWS: Final = 2 * sink_driver.BATCH_ROWS
AT_LEAST_ONCE: Final = "atLeastOnce"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--dedup-window-ms", "0")
    served.start()
    yield served
    served.stop()
    shutil.rmtree(served.data)


def row(number: int) -> bytes:
    """Two of them fill a request."""
    return f"{number}".encode().ljust(2_500)


def ids(spark: Any, broker: Served, topic: str) -> dict[bytes, list[str]]:
    """Body -> ids of the messages that have it."""
    found = defaultdict(list)
    read = spark.read.format("halfmq").options(url=broker.url, subscribe=topic, columns="value,message_id").load()
    for one in read.collect():
        found[bytes(one.value)].append(one.message_id)
    return found


def send(broker: Served, topic: str) -> None:
    with Client(broker.url, group="service") as mq:
        mq.send_many(topic, [compose(topic, row(number)) for number in range(ROWS)])


@pytest.mark.parametrize(
    "moment",
    [stalling_sink.RAISE_AFTER_COMMIT, pytest.param(stalling_sink.KILL_FIRST_WORKER, marks=pytest.mark.thorough)],
)
def test_batch_that_failed_is_sent_again_with_the_same_ids(
    sink: Any, broker: Served, tmp_path: Path, moment: str
) -> None:
    directory = tmp_path / moment
    directory.mkdir()
    send(broker, f"in-{moment}")

    (directory / "moment").write_text(f"{moment} 1")
    with pytest.raises(QueryFailed, match=r"as the test wants it|worker exited|[Cc]onnection reset|crashed"):
        sink_driver.run(sink, broker.url, directory, guarantee=AT_LEAST_ONCE)
    assert (directory / "stalled").exists()
    before = ids(sink, broker, f"out-{moment}")
    assert len(before) >= sink_driver.BATCH_ROWS
    assert {len(one) for one in before.values()} == {1}
    (directory / "moment").unlink()
    sink_driver.run(sink, broker.url, directory, guarantee=AT_LEAST_ONCE)
    found = ids(sink, broker, f"out-{moment}")
    assert found.keys() == {row(number) for number in range(ROWS)}
    assert {body: set(one) for body, one in found.items() if body in before} == {
        b: set(one) for b, one in before.items()
    }
    assert len({one for several in found.values() for one in several}) == ROWS
    if moment == stalling_sink.RAISE_AFTER_COMMIT:
        # All rows of the batch were visible before its end, and again.
        assert sorted(map(len, found.values())) == [1] * sink_driver.BATCH_ROWS + [2] * sink_driver.BATCH_ROWS


@pytest.fixture(scope="module")
def killed_driver(broker: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two queries whose driver was killed: one while a task of batch 1 sent, one after the commit of batch 0."""
    work = tmp_path_factory.mktemp("killed")
    moments = {"sending": f"{stalling_sink.IN_WRITE} 1", "sent": f"{stalling_sink.AFTER_COMMIT} 0"}
    for name in moments:
        send(broker, f"in-{name}")
    with sink_driver.stopped_at(moments, broker.url, work, AT_LEAST_ONCE):
        pass
    return work


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sending", "sent"])
def test_driver_killed_in_the_middle_loses_no_row(sink: Any, broker: Served, killed_driver: Path, name: str) -> None:
    before = ids(sink, broker, f"out-{name}")
    assert sink_driver.BATCH_ROWS <= len(before) < ROWS, "killed in the middle"
    sink_driver.run(sink, broker.url, killed_driver / name, guarantee=AT_LEAST_ONCE)
    found = ids(sink, broker, f"out-{name}")
    assert found.keys() == {row(number) for number in range(ROWS)}
    assert len({one for several in found.values() for one in several}) == ROWS, "what is repeated has the id of before"
    repeated = {body for body, several in found.items() if len(several) > 1}
    assert repeated <= before.keys()
    if name == "sent":
        assert repeated == before.keys(), "the batch was sent, and not noted"


def test_batch_write_that_is_repeated_has_the_same_ids_if_it_has_a_name(sink: Any, broker: Served) -> None:
    def write(**given: str) -> None:
        frame = sink.range(0, 20, 1, 2).selectExpr("cast(id as string) as value", "concat('k', id) as key")
        options = {"url": broker.url, "topic": "writes", "guarantee": AT_LEAST_ONCE, **given}
        frame.write.format("halfmq").mode("append").options(**options).save()

    for _ in range(2):
        write(txnAppId="job", txnVersion="7")
    found = ids(sink, broker, "writes")
    assert found.keys() == {b"%d" % number for number in range(20)}
    # Not twice where the broker was busy and a request was sent again: it finds the message of the first write.
    assert {len(set(several)) for several in found.values()} == {1}
    assert max(map(len, found.values())) == 2
    write()
    assert {len(set(several)) for several in ids(sink, broker, "writes").values()} == {2}


@pytest.mark.thorough
def test_broker_killed_while_a_task_sends(spark: Any, broker: Served) -> None:
    """The task without Spark, which would only wait."""
    given = options(
        broker.name_port, topic="killed", maxHalfBatchBytes="4k", brokerTimeout="60", guarantee=AT_LEAST_ONCE
    )
    kills = broker.kills

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(30):
            if number in (10, 20):
                broker.kill()
                broker.start()
            yield arrow(row(2 * number), row(2 * number + 1), sharding_key=[f"s{number % 3}"] * 2)

    assert at_least_once.write(batches(), given, QueryBatch("killed", 0, "run"), 0).messages == 60
    assert broker.kills == kills + 2
    found = ids(spark, broker, "killed")
    assert found.keys() == {row(number) for number in range(60)}
    assert len({one for several in found.values() for one in several}) == 60
