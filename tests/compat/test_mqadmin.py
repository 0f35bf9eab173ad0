"""RocketMQ's own tools (``mqadmin``, 5.5.0): what they print is what is so.

The commands of a test run one after the other in one JVM, and its output is compared command by command. That every field is kept or
refused is ``unit/broker/remoting/test_administration.py``; here are the words that an operator reads.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.toolchain import SOURCES, tools_classpath
from tests.support.jvm import QUICK
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.served_users import ServedUsers

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

VERSION = "5.5.0"
SECONDS = 200
EXPONENTIAL = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}'
#: A command, and what its output must have. ``BROKER`` stands for the address of the broker.
Walk = tuple[tuple[str, tuple[str, ...]], ...]
REFUSED = "command failed"
#: The output is empty.
NOTHING = ("",)
WALK: Walk = (
    ("clusterList", ("#OutTPS",)),
    ("updateTopic -b BROKER -t T -r 4 -w 4 -a +message.type=FIFO", ("create topic to BROKER success",)),
    ("updateTopic -b BROKER -t T -r 4 -w 4", ("create topic to BROKER success",)),
    ("updateTopic -b BROKER -t T2 -a +bogus.attr=1", (REFUSED, "CODE: 1", "unsupported key: 'bogus.attr'")),
    ("updateTopic -b BROKER -t T2 -u true", (REFUSED, "topicSysFlag is 1")),
    ("updateTopic -b BROKER -t ordered -o true", ("orderConf=[halfmq:8]", "success")),
    ("updateSubGroup -b BROKER -g G -r 3 -q 2", ("success",)),
    ("getConsumerConfig -g G", ("retryMaxTimes = 3", "retryQueueNums = 2", "consumeEnable = true", "consumeBroadcastEnable = false")),
    ("updateSubGroup -b BROKER -g G -d false -m false -a false -s false", ("success",)),
    ("getConsumerConfig -g G", (
        "consumeBroadcastEnable = false", "consumeFromMinEnable = false", "notifyConsumerIdsChangedEnable = false",
        "consumeEnable = false", "retryMaxTimes = 16", "retryQueueNums = 1",
    )),
    ("updateSubGroup -b BROKER -g G -d true -m true -a true", ("success",)),
    ("getConsumerConfig -g G", (
        "consumeBroadcastEnable = true", "consumeFromMinEnable = true", "notifyConsumerIdsChangedEnable = true",
        "consumeEnable = true",
    )),
    ("updateSubGroup -b BROKER -g G -o true", (REFUSED, "consumeMessageOrderly is true")),
    ("cloneGroupOffset -s S -d Nowhere -t orders", (REFUSED, "CODE: 26", "'Nowhere' does not exist")),
    ("cloneGroupOffset -s S -d G -t orders", ("clone group offset success",)),
    ("deleteTopic -c other -t T", (f"DeleteTopicSubCommand {REFUSED}", "topic T exists")),
    ("deleteSubGroup -b BROKER -g G -r true", ("success",)),
)  # fmt: skip
#: Whatever else changes something: it prints why it did not. The last ones have nothing left to do.
REST: Walk = (
    ("updateSubGroup -b BROKER -g G -i 1", (REFUSED, "brokerId is 1")),
    ("updateSubGroup -b BROKER -g G -w 0", (REFUSED, "whichBrokerWhenConsumeSlowly is 0")),
    (f"updateSubGroup -b BROKER -g G -p {EXPONENTIAL}", (REFUSED, "groupRetryPolicy is ")),
    ("updateSubGroup -b BROKER -g G --attributes +lite.bind.topic=T", (REFUSED, "'lite.bind.topic' is not supported")),
    ("getConsumerConfig -g G", NOTHING),  # none of them made it
    ("setConsumeMode -b BROKER -t orders -g S -m POP", (REFUSED, "mode POP is not supported")),
    ("updateBrokerConfig -b BROKER -k flushDiskType -v SYNC_FLUSH", (REFUSED, "CODE: 3")),
    ("updateNamesrvConfig -k a -v b", (REFUSED, "CODE: 3")),
    ("updateKvConfig -s NS -k a -v b", (REFUSED, "settings of namespace NS are not kept here")),
    ("updateOrderConf -t orders -m put -v halfmq:9", (REFUSED, "topic orders is ordered on halfmq:1")),
    ("updateOrderConf -t orders -m delete", (REFUSED, "for as long as it exists")),
    ("updateOrderConf -t orders -m get", ("orderConf=[halfmq:1]",)),
    ("wipeWritePerm -b halfmq", ("Failed", "CODE: 3")),
    ("addWritePerm -b halfmq", ("Failed", "CODE: 3")),
    ("resetOffsetByTime -g S -t orders -s now", (REFUSED, "CODE: 3")),
    ("skipAccumulatedMessage -g S -t orders", (REFUSED, "CODE: 3")),
    ("cleanExpiredCQ -b BROKER", (REFUSED, "CODE: 3")),
    ("cleanUnusedTopic -b BROKER", (REFUSED, "CODE: 3")),
    ("deleteExpiredCommitLog -b BROKER", ("command execute failed", "CODE: 3")),
    ("updateColdDataFlowCtrGroupConfig -b BROKER -g S -v 10", (REFUSED, "CODE: 3")),
    ("removeColdDataFlowCtrGroupConfig -b BROKER -g S", (REFUSED, "CODE: 3")),
    ("createUser -b BROKER -u me -p pass", (REFUSED, "CODE: 3")),
    ("resetMasterFlushOffset -b BROKER -o 1", (REFUSED, "CODE: 3")),
    ("updateTopicPerm -b BROKER -t orders -p 4", ("update topic perm from 6 to 4", "success")),
    ("deleteTopic -c DefaultCluster -t orders", ("from cluster [DefaultCluster] success", "from NameServer success")),
    ("deleteTopic -c DefaultCluster -t orders", ("from NameServer success",)),
    ("deleteKvConfig -s ORDER_TOPIC_CONFIG -k orders", ("success",)),
)  # fmt: skip


async def printed(broker: Served, home: Path, walk: Walk, *options: str) -> list[str]:
    """The output of each command; runs of blanks are one blank. ``home``: a directory for the tools' logs; ``options``: of the JVM."""
    names, address = f"127.0.0.1:{broker.name_port}", f"127.0.0.1:{broker.port}"
    lines = []
    for command, _ in walk:
        name, *arguments = command.split(" ")
        lines.append("\t".join((name, "-n", names, *(part.replace("BROKER", address) for part in arguments))))
    await asyncio.to_thread((home / "commands").write_text, "\n".join(lines))
    java = await asyncio.create_subprocess_exec(
        "java", "-Xmx384m", *QUICK, f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}/logs", *options,
        "-cp", tools_classpath(VERSION), str(SOURCES / "Mqadmin.java"), str(home / "commands"),
        cwd=home, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(java.communicate(), SECONDS)
    finally:
        if java.returncode is None:
            java.kill()
            await java.wait()
    text = re.sub(r"[ \t]+", " ", output.decode(errors="replace"))
    parts = re.split(r"^#\d+$", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(walk), text[-3000:]
    return parts


async def with_offsets(broker: Served) -> RawClient:
    """A client of a broker with a message in the topic "orders", and a group S that has read it."""
    client = await RawClient.connect(broker.port)
    await client.send("orders", b"one")
    assert (await client.ask(200, body=b'{"groupName":"S"}')).code == 0
    assert (
        await client.ask(15, {"consumerGroup": "S", "topic": "orders", "queueId": "0", "commitOffset": "1"})
    ).code == 0
    return client


async def keep_reading(client: RawClient) -> None:
    while True:
        assert (await client.pull("orders", 0, group="S")).code == 0
        await asyncio.sleep(0.1)  # real time: a steady rate of reads, which nothing waits for


def compared(broker: Served, walk: Walk, outputs: list[str]) -> None:
    wrong = []
    for (command, wanted), output in zip(walk, outputs, strict=True):
        address = f"127.0.0.1:{broker.port}"
        missing = [text for text in wanted if text.replace("BROKER", address) not in output]
        if missing or (REFUSED in wanted and "success" in output) or (wanted == NOTHING and output.strip()):
            wrong.append(f"{command}: no {missing} in\n{output[:400]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
async def test_what_mqadmin_says_it_did_is_done_and_the_rest_is_refused(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    broker = serve()
    client = await with_offsets(broker)
    reading = asyncio.create_task(keep_reading(client))
    outputs = await printed(broker, tmp_path, WALK)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    row = next(line for line in outputs[0].splitlines() if line.startswith("DefaultCluster"))
    (delivered,) = re.findall(r"ms\) ([0-9.]+)\(", row)
    assert float(delivered) > 0, row
    assert row.rstrip().endswith("true"), "it is activated"
    compared(broker, WALK, outputs)
    topic = await client.ask(351, {"topic": "T"})
    assert b'"attributes":{"message.type":"FIFO"}' in topic.body, "a change that does not name it leaves it"
    assert (await client.ask(351, {"topic": "T2"})).code == 17, "what was refused was not made"
    gone = await client.ask(14, {"consumerGroup": "G", "topic": "orders", "queueId": "0", "setZeroIfNotFound": "false"})
    assert gone.code == 22, "offsets went with the group"
    await client.close()


@pytest.mark.thorough
async def test_what_mqadmin_cannot_do_here_it_does_not_claim(serve: Callable[..., Served], tmp_path: Path) -> None:
    broker = serve()
    client = await with_offsets(broker)
    compared(broker, REST, await printed(broker, tmp_path, REST))
    await client.close()


#: What stock clients do with a user: ``sendMessage`` has a producer, and ``consumeMessage`` a consumer that pulls.
AS_USER: Walk = (
    ("clusterList", ("DefaultCluster",)),
    ("updateTopic -b BROKER -t orders -r 1 -w 1", ("create topic to BROKER success",)),
    ("sendMessage -t orders -p hello", ("SEND_OK",)),
    ("consumeMessage -t orders -g readers -c 1", ("hello",)),
)


@pytest.mark.thorough
async def test_stock_tools_sign_as_a_user_of_the_broker(serve: Callable[..., Served], tmp_path: Path) -> None:
    """With ``tools.yml``, as docs/users.md says: their producer and consumer sign by ``AclClientRPCHook``."""
    broker = serve("--secrets-key-file", str(tmp_path / "secrets.key"))
    users = await asyncio.to_thread(ServedUsers, broker, tmp_path)
    await asyncio.to_thread(users.add, "shop", "send:topic:stock")
    for name, wanted in (
        ("alice", AS_USER),
        ("shop", tuple((command, ("CODE: 16",)) for command, _ in AS_USER[1:3])),
        ("nobody", ((AS_USER[1][0], ("CODE: 16", "the signature is not one of user 'nobody'")),)),
    ):
        home = tmp_path / f"home-{name}"
        (home / "conf").mkdir(parents=True)
        secret = (tmp_path / ("shop" if name == "nobody" else name)).read_text().strip()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {name}\nsecretKey: {secret}\n")
        compared(broker, wanted, await printed(broker, home, wanted, f"-Drocketmq.home.dir={home}"))
