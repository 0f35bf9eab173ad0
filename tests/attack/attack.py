"""A user without rights, and strangers, against a broker where others work: the processes, and what is compared in the end."""

import asyncio
import json
import multiprocessing
import random
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

import msgspec

from halfmq import AsyncClient
from halfmq.broker.first_token import NAME
from halfmq.broker.remoting.commands import COMMANDS
from halfmq.broker.services.users import FIRST
from halfmq.client.outgoing import compose
from halfmq.model.users import UserLimits
from halfmq.wire.remoting.codes import (
    HMQ_DECISION,
    HMQ_FENCE,
    HMQ_LOGIN,
    HMQ_POSITION,
    HMQ_SET_USER,
    HMQ_USERS,
    RequestCode,
    ResponseCode,
)
from halfmq.wire.remoting.route import decode_topic_list
from halfmq.wire.remoting.users import CHANGE, NEW_SECRET, USERS, UserChange
from tests.support.raw_client import RawClient, frame
from tests.support.served import Served
from tests.support.users import log_in, signed
from tests.support.worst_requests import REQUESTS, binary_frame, json_frame

#: In every honest body, and nowhere else.
CANARY: Final = "canary-4f1c9b"
TOPIC: Final = "T"
MALLORY: Final = "mallory"
RATE: Final = 200
#: Connections of the attack: logged in; signing and strangers.
LOGGED_IN: Final = 6
OTHERS: Final = 6
#: Honest transactions a second.
PACE: Final = 40
#: Answered with 0 to everybody.
OPEN: Final = {HMQ_LOGIN, RequestCode.GET_BROKER_CLUSTER_INFO}
#: The same, if these fields are empty: which store it is, how far its log is, and leaving no group.
OPEN_WITHOUT: Final[dict[int, tuple[str, ...]]] = {
    HMQ_POSITION: ("topics",), HMQ_FENCE: ("txId",), HMQ_DECISION: ("query",), RequestCode.UNREGISTER_CLIENT: ("producerGroup", "consumerGroup"),
}  # fmt: skip


# --- the attack


def _changed(rng: random.Random, ext: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """A valid request, or one with something changed."""
    ext = dict(ext)
    for name in list(ext):
        match rng.randrange(12):
            case 0:
                ext[name] = rng.choice(
                    [
                        "",
                        "0",
                        "-1",
                        "1",
                        TOPIC,
                        "shop",
                        "billing",
                        "*",
                        "%RETRY%billing",
                        str(rng.getrandbits(62)),
                        "x" * 300,
                    ]
                )
            case 1:
                del ext[name]
    if body and not rng.randrange(3):
        at = rng.randrange(len(body))
        body = body[:at] + rng.randbytes(rng.randrange(8)) + body[at + rng.randrange(8) :]
    return ext, body


async def _attack(port: int, secret: str, seed: int, begin: Event, pause: Event, end: Event, told: Any) -> None:
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    found: list[str] = []
    codes = sorted(COMMANDS)

    def judge(code: int, ext: dict[str, str], answer: Any) -> None:
        seen[str(answer.code)] += 1
        is_open = code in OPEN or (code in OPEN_WITHOUT and not any(ext.get(name) for name in OPEN_WITHOUT[code]))
        if answer.code == ResponseCode.SUCCESS and not is_open:
            found.append(f"command {code} was answered with success: {answer.ext}")
        if CANARY.encode() in answer.body or CANARY in json.dumps(answer.ext) + (answer.remark or ""):
            found.append(f"command {code} was answered with somebody's message")

    async def connection(kind: str) -> RawClient:
        client = await RawClient.connect(port)
        if kind == "logged in":
            await log_in(client, MALLORY, secret)
        return client

    async def work(kind: str) -> None:
        client = await connection(kind)
        while not end.is_set():
            if pause.is_set():
                await asyncio.sleep(0.05)
                continue
            try:
                if client.closed.is_set():
                    client = await connection(kind)
                    seen["connections"] += 1
                code = rng.choice(codes)
                if not rng.randrange(20):
                    noise = (
                        frame(rng.randbytes(rng.randrange(1, 200)), b"")
                        if rng.randrange(2)
                        else rng.randbytes(rng.randrange(4, 64))
                    )
                    client.write(noise)
                    seen["noise"] += 1
                    await asyncio.sleep(0.02)
                    continue
                ext, body = _changed(rng, *REQUESTS[code])
                if not rng.randrange(50):
                    ext["padding"] = "p" * rng.choice([1_000, 100_000, 3_000_000])
                if kind == "signed" and rng.randrange(4):
                    ext = signed(ext, body, MALLORY, secret if rng.randrange(2) else "guessed secret")
                if not rng.randrange(10):
                    client.write(json_frame(code, ext, body, flag=2, opaque=0))  # one-way
                    seen["one-way"] += 1
                    continue
                judge(code, ext, await client.ask(code, ext, body, wait_s=60))
            except ConnectionError:
                seen["cut off"] += 1
                await client.close()
                client = await connection(kind)
            except TimeoutError:
                seen["unanswered"] += 1

    async def binary() -> None:
        """Frames with binary headers, whose responses are only searched."""
        while not end.is_set():
            await asyncio.sleep(0.05)
            if pause.is_set():
                continue
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ext, body = _changed(rng, *REQUESTS[code := rng.choice(codes)])
            if rng.randrange(2):
                ext = signed(ext, body, MALLORY, secret)
            try:
                writer.write(binary_frame(code, ext, body))
                data = await asyncio.wait_for(reader.read(1 << 20), 10)
            except (ConnectionError, TimeoutError):
                data = b""
            seen["binary"] += 1
            if CANARY.encode() in data:
                found.append(f"command {code}, binary, was answered with somebody's message")
            writer.close()

    begin.wait()
    kinds = ["logged in"] * LOGGED_IN + ["signed", "stranger"] * (OTHERS // 2)
    await asyncio.gather(*[work(kind) for kind in kinds], binary())
    told.send((dict(seen), found[:20]))


def attack(*arguments: Any) -> None:
    asyncio.run(_attack(*arguments))


# --- honest work


async def _honest(url: dict[str, str], end: Event, told: Any) -> None:
    rng = random.Random(1)
    committed: set[str] = set()
    received: Counter[str] = Counter()
    times: list[tuple[float, float]] = []
    async with AsyncClient(url["shop"], group="shop") as shop, AsyncClient(url["billing"], group="billing") as billing:

        async def consume() -> None:
            async with billing.consumer([TOPIC], start="earliest") as messages:
                async for message in messages:
                    received[json.loads(message.body)["id"]] += 1
                    message.ack()

        consuming = asyncio.create_task(consume())
        number = 0
        while not end.is_set():
            number += 1
            began = time.monotonic()
            prepared = await shop.prepare(
                [compose(TOPIC, {"id": str(number), "canary": CANARY})], tx_id=shop.new_transaction_id()
            )
            if rng.random() < 0.2:
                await shop.rollback(prepared)
            else:
                committed.add(str(number))
                await shop.commit(prepared)
            times.append((began, time.monotonic() - began))
            await asyncio.sleep(max(0.0, began + 1 / PACE - time.monotonic()))
        for _ in range(600):
            if committed <= received.keys():
                break
            await asyncio.sleep(0.1)
        consuming.cancel()
    problems = [f"{len(committed - received.keys())} messages were lost"] * (not committed <= received.keys())
    problems += [f"phantoms: {sorted(received.keys() - committed)[:5]}"] * (not received.keys() <= committed)
    told.send((times, len(committed), problems))


def honest(*arguments: Any) -> None:
    asyncio.run(_honest(*arguments))


# --- the whole


def _p99_ms(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * 1_000


async def _users(port: int, data: Path, directory: Path, name_port: int) -> tuple[dict[str, str], str, RawClient]:
    """URLs of the honest ones, the secret of the other, and an administrator's connection."""
    first = await RawClient.connect(port)
    await log_in(first, FIRST, (data / NAME).read_text().strip())
    secrets: dict[str, str] = {}

    async def add(client: RawClient, user: str, permissions: list[str], **more: Any) -> None:
        answer = await client.ask(
            HMQ_SET_USER, {}, CHANGE.encode(UserChange(user, True, permissions=permissions, **more))
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        secrets[user] = NEW_SECRET.decode(answer.body).secret
        (directory / user).write_text(secrets[user])
        (directory / user).chmod(0o600)

    await add(first, "root", [f"{right}:*" for right in ("administer", "describe", "consume")])
    await first.close()
    root = await RawClient.connect(port)
    await log_in(root, "root", secrets["root"])
    await add(root, "shop", ["send:topic:T", "send:group:shop"])
    await add(root, "billing", ["consume:topic:T", "consume:group:billing"])
    await add(root, MALLORY, [], limits=UserLimits(requests_per_s=RATE))
    return (
        {user: f"rocketmq://{user}@127.0.0.1:{name_port}?secretfile={directory / user}" for user in secrets},
        secrets[MALLORY],
        root,
    )


#: What the honest ones have made.
_EXPECTED: Final = {
    "topics": sorted(["%RETRY%billing", TOPIC, "TBW102"]),
    "users": sorted(["root", "shop", "billing", MALLORY]),
    "groups": ["billing"],
}


async def _state(root: RawClient) -> dict[str, object]:
    topics = await root.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    users = await root.ask(HMQ_USERS, {"max": "100"})
    groups = await root.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return {
        "topics": sorted(decode_topic_list(topics.body)),
        "users": sorted(one.user for one in USERS.decode(users.body) if one.permissions or one.user == MALLORY),
        "groups": sorted(msgspec.json.decode(groups.body)["subscriptionGroupTable"]),
    }


def run(seconds: float, seed: int, phase_s: float, directory: Path) -> dict[str, Any]:
    key, audit = directory / "key", directory / "audit.jsonl"
    broker = Served(
        directory / "data", directory / "log", "--secrets-key-file", str(key), "--audit-log", str(audit), "--audit-log-files", "50"
    )  # fmt: skip
    broker.start()
    context = multiprocessing.get_context("spawn")
    begin, pause, end, quiet = (context.Event() for _ in range(4))
    here, there = context.Pipe()
    mine, theirs = context.Pipe()
    processes = []
    try:
        urls, secret, root_secret = asyncio.run(_prepare(broker, directory))
        pause.set()
        processes = [
            context.Process(target=honest, args=(urls, quiet, there)),
            context.Process(target=attack, args=(broker.port, secret, seed, begin, pause, end, theirs)),
        ]
        for process in processes:
            process.start()
        time.sleep(5)
        begin.set()
        phases: list[tuple[float, float, bool]] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for is_attacked in (False, True):
                (pause.clear if is_attacked else pause.set)()
                time.sleep(0.5)
                began = time.monotonic()
                time.sleep(phase_s)
                phases.append((began, time.monotonic(), is_attacked))
        end.set()
        pause.clear()
        seen, found = mine_of(mine, 120)
        after = asyncio.run(_seen(broker, root_secret))
        quiet.set()
        times, committed, problems = mine_of(here, 120)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        broker.stop()
    measured = {
        is_attacked: [took for at, took in times if any(b <= at < e and a is is_attacked for b, e, a in phases)]
        for is_attacked in (False, True)
    }
    p99 = {is_attacked: _p99_ms(of) for is_attacked, of in measured.items()}
    refused = _refusals(directory)
    got = seen.get(str(int(ResponseCode.NO_PERMISSION)), 0)
    problems += found
    problems += [f"changed: {after}"] * (after != _EXPECTED)
    problems += [f"the audit log has {refused} refusals, and the attack got {got}"] * (refused < got)
    problems += [f"p99 {p99[True]:.1f} ms with the attack, {p99[False]:.1f} without"] * (p99[True] > 2 * p99[False])
    return {
        "seconds": seconds, "seed": seed, "attack": seen, "refusals_in_audit_log": refused, "honest_transactions": len(times),
        "committed": committed, "p99_ms": {"quiet": round(p99[False], 2), "attacked": round(p99[True], 2)},
        "ratio": round(p99[True] / p99[False], 3), "problems": problems,
    }  # fmt: skip


def mine_of(pipe: Any, seconds: float) -> Any:
    assert pipe.poll(seconds), "a process does not say how it ended"
    return pipe.recv()


async def _prepare(broker: Served, directory: Path) -> tuple[dict[str, str], str, str]:
    urls, secret, root = await _users(broker.port, broker.data, directory, broker.name_port)
    made = {"topic": TOPIC, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    assert (await root.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)).code == ResponseCode.SUCCESS
    await root.close()
    return urls, secret, (directory / "root").read_text()


async def _seen(broker: Served, secret: str) -> dict[str, object]:
    root = await RawClient.connect(broker.port)
    assert (await log_in(root, "root", secret)).code == ResponseCode.SUCCESS
    state = await _state(root)
    await root.close()
    return state


def _refusals(directory: Path) -> int:
    lines = [json.loads(line) for file in directory.glob("audit.jsonl*") for line in file.read_text().splitlines()]
    assert not [line for line in lines if line["event"] == "lost"], "lines of the audit log were lost"
    return sum(line.get("count", 1) for line in lines if line["event"] == "refused")
