"""A broker with users, through its ports: who is served as whom, what is recorded, what ends a connection."""

import asyncio
import json
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import make_broker, serving
from tests.support.raw_client import Answer, RawClient, property_string
from tests.support.services import FakePeer
from tests.support.users import FIRST, WithUsers, log_in, serving_users, signed
from tests.support.waiting import soon, until
from tests.support.worst_requests import binary_frame, json_frame, send_ext

from halfmq import limits
from halfmq.broker.first_token import NAME
from halfmq.broker.peers.peer import Peer
from halfmq.broker.services import users as users_module
from halfmq.broker.services.users import Change, Changed
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.users import UserLimits
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.users import CHANGE, NEW_SECRET, USERS, UserChange

OK, NO = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
#: Of a service that sends to its own topic.
SHOP = ("send:topic:orders", "send:group:shop")
BILLING = ("consume:topic:orders", "consume:group:billing")


async def send(client: RawClient, group: str = "shop", topic: str = "orders", **properties: str) -> Answer:
    return await client.ask(310, send_ext(group, topic, property_string(**properties)), b"a secret body")


async def half(client: RawClient, tx_id: str, group: str = "shop", **properties: str) -> Answer:
    return await send(client, group, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=tx_id, **properties)


def ids(number: int) -> str:
    return f"AC10000100002A9F{number:016X}"


def places(answer: Answer) -> dict[str, str]:
    """For END_TRANSACTION: where a half is."""
    return {
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)),
    }


async def end(client: RawClient, prepared: Answer, tx_id: str, *, commit: bool = True, group: str = "shop") -> Answer:
    fields = {"producerGroup": group, "commitOrRollback": "8" if commit else "12", "msgId": tx_id, **places(prepared)}
    return await client.ask(RequestCode.END_TRANSACTION, fields)


def events(directory: Path) -> list[dict[str, Any]]:
    """What the audit log says once the broker has ended."""
    return [json.loads(line) for line in (directory / "store" / "audit.jsonl").read_text().splitlines()]


async def closed(client: RawClient) -> None:
    await soon(client.closed.wait())


# --- the first administrator


async def test_the_token_makes_an_administrator_once_and_then_is_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with serving(store, secrets_key_file=tmp_path / "key") as running:
        file = store / NAME
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        first, other = await running.client(), await running.client()
        for client in (first, other):
            assert (await log_in(client, FIRST, token)).code == OK
        mere = await first.ask(codes.HMQ_SET_USER, {}, CHANGE.encode(UserChange("ann", True, permissions=["send:*"])))
        assert mere.code == ResponseCode.SYSTEM_BUSY
        assert "administer:broker" in (mere.remark or "")
        made = await first.ask(
            codes.HMQ_SET_USER, {}, CHANGE.encode(UserChange("ann", True, permissions=["administer:*"]))
        )
        secret = NEW_SECRET.decode(made.body).secret
        assert len(secret) == 43
        await closed(first)
        await closed(other)
        assert not file.exists()
        again = await running.client()
        assert (await log_in(again, FIRST, token)).code == NO
        ann = await running.client()
        assert (await log_in(ann, "ann", secret)).code == OK
    async with serving(store, secrets_key_file=tmp_path / "key") as running:
        assert not file.exists()
        ann = await running.client()
        assert (await log_in(ann, "ann", secret)).code == OK


async def test_the_token_may_do_nothing_else(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with serving(store, secrets_key_file=tmp_path / "key") as running:
        token = (store / NAME).read_text().strip()
        first = await running.client()
        assert (await log_in(first, FIRST, token)).code == OK
        assert (await send(first)).code == NO
        # It is not a secret that signs.
        signing = await running.client()
        assert (await signing.ask(310, signed(send_ext("g", "t"), b"x", FIRST, token), b"x")).code == NO
        named = UserChange(FIRST, True, permissions=["administer:*"])
        assert (await first.ask(codes.HMQ_SET_USER, {}, CHANGE.encode(named))).code == ResponseCode.INVALID_PARAMETER


async def test_a_store_with_users_needs_their_key(tmp_path: Path) -> None:
    async with serving_users(tmp_path):
        pass
    for options, error in (({}, UsageError), ({"secrets_key_file": tmp_path / "other"}, EnvironmentFailed)):
        broker = make_broker(tmp_path / "store", **options)
        with pytest.raises(error, match="secrets" if options else "--secrets-key-file|whose secrets"):
            await broker.start()
        broker.close()
    (tmp_path / "other").write_text("A" * 43 + "=\n")
    (tmp_path / "other").chmod(0o600)
    broker = make_broker(tmp_path / "store", secrets_key_file=tmp_path / "other")
    with pytest.raises(EnvironmentFailed, match="key"):
        await broker.start()
    broker.close()


async def test_no_secret_is_in_the_store_nor_in_the_audit_log(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        secret = await users.add("shop", SHOP)
        chosen = "correct horse battery"
        assert (await users.change(UserChange("shop", False, password=chosen))).code == OK
    written = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"shop" in written
    assert secret.encode() not in written
    assert chosen.encode() not in written


# --- rights that a table of fields alone does not decide


async def test_a_message_by_its_offset_is_for_who_may_consume_its_topic(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await users.add("billing", BILLING)
        sent = await send(await users.client("shop"))
        offset = str(int(sent.ext["msgId"][-16:], 16))
        shop, billing = await users.client("shop"), await users.client("billing")
        assert (await shop.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": "orders"})).code == NO
        found = await billing.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert found.code == OK
        assert b"a secret body" in found.body
        # Handing it back as one's own group would copy it into a topic that one may read.
        await users.add("thief", ("consume:group:thief", "consume:topic:mine"))
        thief = await users.client("thief")
        fields = {"offset": offset, "group": "thief", "delayLevel": "1", "originMsgId": "", "originTopic": "mine"}
        assert (await thief.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == NO
        fields = {**fields, "group": "billing"}
        settings = {"groupName": "billing"}
        made = await users.administrator.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode()
        )
        assert made.code == OK
        assert (await billing.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == OK


async def test_a_half_is_of_the_group_in_its_properties(tmp_path: Path) -> None:
    """Its checks, with its body, go to that group's producers."""
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        shop = await users.client("shop")
        foreign = await send(shop, TRAN_MSG="true", PGROUP="bank", UNIQ_KEY=ids(1))
        assert foreign.code == NO
        assert "'bank'" in (foreign.remark or "")
        assert (await half(shop, ids(2))).code == OK
        # Java's clients all join this group; nobody's transactions are in it.
        inner = await send(
            shop, group="CLIENT_INNER_PRODUCER", TRAN_MSG="true", PGROUP="CLIENT_INNER_PRODUCER", UNIQ_KEY=ids(3)
        )
        assert inner.code == NO


async def test_another_users_transaction_is_not_settled(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await users.add("bank", ("send:topic:orders", "send:group:bank"))
        shop, bank = await users.client("shop"), await users.client("bank")
        prepared = await half(shop, ids(1))
        assert (await end(bank, prepared, ids(1))).code == NO
        assert (await end(bank, prepared, ids(1), group="bank")).code != OK
        assert (await end(shop, prepared, ids(1))).code == OK


async def test_a_client_id_is_its_users(tmp_path: Path) -> None:
    """Replies to requests are sent to a client id: nobody else takes it while it is connected."""
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await users.add("bank", ("send:group:bank",))
        shop, bank = await users.client("shop"), await users.client("bank")

        def heartbeat(group: str) -> bytes:
            return json.dumps(
                {"clientID": "me", "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
            ).encode()

        assert (await shop.ask(RequestCode.HEART_BEAT, {}, heartbeat("shop"))).code == OK
        assert (await bank.ask(RequestCode.HEART_BEAT, {}, heartbeat("bank"))).code == NO
        second = await users.client("shop")
        assert (await second.ask(RequestCode.HEART_BEAT, {}, heartbeat("shop"))).code == OK


# --- who it was


async def test_the_log_says_who_prepared_and_who_settled(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await users.add("desk", ("settle:group:shop", "describe:group:shop"))
        shop, desk = await users.client("shop"), await users.client("desk")
        own = await half(shop, ids(1), HMQ_USER="bank")
        assert (await end(shop, own, ids(1))).code == OK
        await half(shop, ids(2))
        fields = {
            "group": "shop",
            "txId": ids(2),
            "verdict": "ROLLBACK",
            "operator": "somebody else",
            "reason": "ticket 4711",
        }
        assert (await desk.ask(codes.HMQ_RESOLVE, fields)).code == OK
        for number, who in ((1, "shop"), (2, "desk")):
            story = await desk.ask(codes.HMQ_STORY, {"group": "shop", "txId": ids(number)})
            text = " ".join(json.loads(story.body))
            assert f"user {who}" in text or f"operator {who}" in text, text
            assert "bank" not in text
            assert "somebody else" not in text
    log = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"HMQ_USER\x01shop\x02" in log
    assert b"HMQ_USER\x01bank\x02" not in log


async def test_a_stranger_with_malformed_headers_is_noted_as_who_he_claims_to_be_and_read_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(Peer, "rest", lambda self, seconds: rests.append(seconds))
    async with serving_users(tmp_path) as users:
        stranger = await users.client()
        many = {f"field{number}": "1" for number in range(limits.HEADER_FIELDS_MAX)} | {"AccessKey": "shop"}
        for code in (310, codes.HMQ_LOGIN):
            stranger.write(json_frame(code, many, b"", opaque=code))
            stranger.write(binary_frame(code, many))
        await until(lambda: len(rests) == 4)
    refused = [one for one in events(tmp_path) if one["event"] == "refused"]
    assert [one for one in refused if "user" in one] == [], "nobody proved to be a user"
    assert "shop" in {one.get("claims") for one in refused}
    noted: Counter[str] = Counter()
    for one in refused:
        noted[one["command"]] += one.get("count", 1)
    assert noted == {"SEND_MESSAGE_V2": 2, "HMQ_LOGIN": 2}


async def test_the_audit_log_has_every_refusal_and_every_administrative_action(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        shop, stranger = await users.client("shop"), await users.client()
        for _ in range(5):
            assert (await send(shop, topic="payments")).code == NO
        assert (await send(stranger)).code == NO
        topic = {"topic": "made", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        assert (await users.administrator.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == OK
        missing = {"group": "shop", "txId": ids(9), "verdict": "COMMIT", "operator": "x", "reason": "y"}
        assert (await users.administrator.ask(codes.HMQ_RESOLVE, missing)).code != OK
        # One-way: there is no response, and the line is written nevertheless.
        shop.tell(310, send_ext("shop", "payments"), b"x")
        assert (await shop.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == OK
    found = events(tmp_path)
    refused = [one for one in found if one["event"] == "refused"]
    assert sum(one.get("count", 1) for one in refused if one.get("user") == "shop") == 6
    assert [one for one in refused if "user" not in one]
    assert {one["command"] for one in refused} == {"SEND_MESSAGE_V2"}
    done = {(one["command"], one["event"]) for one in found if one["event"] in ("done", "failed")}
    assert {("UPDATE_AND_CREATE_TOPIC", "done"), ("HMQ_RESOLVE", "failed"), ("HMQ_SET_USER", "done")} <= done
    assert [one for one in found if one["event"] == "login" and one["user"] == "shop"]


# --- what changes while a user is connected


async def test_a_secret_is_rotated_while_both_are_valid_and_nobody_is_cut_off(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        before = await users.add("shop", SHOP)
        shop = await users.client("shop")
        change = UserChange("shop", False, secret="", old_secret_s=600)
        after = NEW_SECRET.decode((await users.change(change)).body).secret
        assert after not in ("", before)
        assert (await send(shop)).code == OK
        for secret in (before, after):
            client = await users.client()
            assert (await log_in(client, "shop", secret)).code == OK
        listed = USERS.decode((await users.administrator.ask(codes.HMQ_USERS, {"max": "10"})).body)
        assert {one.user: one.secrets for one in listed} == {"root": 1, "shop": 2}
        last = NEW_SECRET.decode((await users.change(UserChange("shop", False, secret=""))).body).secret
        for secret, code in ((before, NO), (after, NO), (last, OK)):
            client = await users.client()
            assert (await log_in(client, "shop", secret)).code == code
        assert (await send(shop)).code == OK


async def test_what_a_user_loses_is_lost_at_once(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        shop = await users.client("shop")
        assert (await send(shop)).code == OK
        assert (await users.change(UserChange("shop", False, permissions=["send:topic:other"]))).code == OK
        await closed(shop)
        shop = await users.client("shop")
        assert (await send(shop)).code == NO
        await users.remove("shop")
        await closed(shop)
        late = await users.client()
        assert (await log_in(late, "shop", users.secrets["shop"])).code == NO
        # The last administrator stays.
        refused = await users.administrator.ask(codes.HMQ_REMOVE_USER, {"user": "root", "reason": "x"})
        assert refused.code == ResponseCode.SYSTEM_BUSY


async def test_changes_of_one_user_begin_with_what_the_one_before_left(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        other = await users.client("root")
        first = users.change(UserChange("shop", False, permissions=["send:topic:a"], password="correct horse"))
        second = other.ask(
            codes.HMQ_SET_USER, {}, CHANGE.encode(UserChange("shop", False, limits=UserLimits(connections=3)))
        )
        answers = await soon(asyncio.gather(first, second))
        assert [answer.code for answer in answers] == [OK, OK]
        (shop,) = [u for u in USERS.decode((await other.ask(codes.HMQ_USERS, {"max": "10"})).body) if u.user == "shop"]
        assert (shop.permissions, shop.limits.connections, shop.has_password) == (["send:topic:a"], 3, True)


# --- limits


async def test_connections_of_a_user_are_limited(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        secret = await users.add("shop", SHOP, limits=UserLimits(connections=2))
        first, _ = await users.client("shop"), await users.client("shop")
        third = await users.client()
        answer = await log_in(third, "shop", secret)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "'shop' has 2 connections" in (answer.remark or "")
        await closed(third)
        await first.close()
        await until(lambda: len(users.running.broker._peers.connected) == 3, "it is gone")
        assert (await log_in(await users.client(), "shop", secret)).code == OK


async def test_one_user_leaves_others_a_quarter_of_the_connections(tmp_path: Path) -> None:
    async with serving_users(tmp_path, connections_max=100, connections_per_address_max=100) as users:
        secret = await users.add("flood", SHOP)
        await users.add("shop", SHOP)
        for _ in range(75):
            await users.client("flood")
        answer = await log_in(await users.client(), "flood", secret)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_BUSY,
            "user 'flood' has 75 of 100 connections, as many as one user may (--connections-max, or halfmq user set --connections)",
        )
        assert (await send(await users.client("shop"))).code == OK
        # A limit of its own may be more.
        assert (await users.change(UserChange("flood", False, limits=UserLimits(connections=76)))).code == OK
        await users.client("flood")


async def test_one_address_leaves_others_a_password_that_is_verified_and_one_user_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_module, "_CHANGES_MAX", 4)
    async with serving_users(tmp_path) as users:
        await users.add("desk", ("describe:*",), password="correct horse battery")
        service = users.running.broker._users
        assert service is not None
        found: list[Any] = []
        guesser, honest = [FakePeer(number) for number in range(4)], FakePeer(host="10.0.0.8")
        for peer in guesser:
            service.by_password(peer, "desk", "wrong", found.append)  # type: ignore[arg-type]
        (refused,) = found
        assert refused.text == (
            "address 10.0.0.7 has 3 of 4 passwords that are being verified, and one address may have 3: try again"
        )
        service.by_password(honest, "desk", "correct horse battery", found.append)  # type: ignore[arg-type]
        await until(lambda: len(found) == 5)
        assert sorted(one.name for one in found[1:] if one is not None) == ["desk"]
        assert service._verifying.taken == 0
        # Who was known once does not wait for those who guess, until the password is another one.
        for peer in guesser:
            service.by_password(peer, "desk", "wrong", lambda _: None)  # type: ignore[arg-type]
        service.by_password(guesser[0], "desk", "correct horse battery", found.append)  # type: ignore[arg-type]
        assert found[-1].name == "desk"
        assert (await users.change(UserChange("desk", False, password="another horse battery"))).code == OK
        service.by_password(honest, "desk", "correct horse battery", found.append)  # type: ignore[arg-type]
        await until(lambda: len(found) == 7)
        assert found[-1] is None
        # Changes of users.
        await users.add("ada", ("administer:*",))
        await users.client("ada")
        await users.client("root")
        peers = list(users.running.broker._peers.connected.values())
        root, ada = [[peer for peer in peers if peer.user == name] for name in ("root", "ada")]
        answers: list[Any] = []
        for number in range(4):
            change = Change("desk", False, "", None, None, None, 0, f"long enough {number}")
            service.change(root[number % 2], change, answers.append)
        (refused,) = answers
        assert refused.text == "user 'root' has 3 of 4 changes of users that wait, and one user may have 3: try again"
        service.change(ada[0], Change("desk", False, "", None, None, None, 0, "by ada, as it is"), answers.append)
        await until(lambda: len(answers) == 5)
        assert [isinstance(one, Changed) for one in answers] == [False, True, True, True, True]
        assert service._changes.taken == 0


async def test_a_user_that_sends_too_much_waits_and_others_do_not(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP, limits=UserLimits(requests_per_s=20))
        await users.add("bank", ("send:topic:orders", "send:group:bank"))
        shop, bank = await users.client("shop"), await users.client("bank")
        loop = asyncio.get_running_loop()
        began = loop.time()
        flood = [asyncio.create_task(send(shop)) for _ in range(40)]
        for _ in range(20):
            assert (await send(bank, "bank")).code == OK
        assert sum(task.done() for task in flood) < 40
        assert {answer.code for answer in await soon(asyncio.gather(*flood))} == {OK}
        assert loop.time() - began >= 0.9  # 40 requests at 20/s, of which 20 may come at once


async def test_names_that_a_user_makes_are_limited(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", ("send:topic:*", "send:group:shop"), limits=UserLimits(names=3))
        shop = await users.client("shop")
        answers = [await send(shop, topic=f"t{number}") for number in range(4)]
        assert [answer.code for answer in answers] == [OK, OK, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
        assert "'shop' has named 3" in (answers[-1].remark or "")
        assert (await send(shop, topic="t1")).code == OK


async def test_undecided_transactions_of_a_user_are_limited(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP, limits=UserLimits(undecided=2))
        await users.add("bank", ("send:topic:orders", "send:group:bank"))
        shop, bank = await users.client("shop"), await users.client("bank")
        prepared = [await half(shop, ids(number)) for number in range(3)]
        assert [answer.code for answer in prepared] == [OK, OK, ResponseCode.SYSTEM_BUSY]
        assert "'shop'" in (prepared[-1].remark or "")
        assert (await half(bank, ids(9), "bank")).code == OK
        assert (await end(shop, prepared[0], ids(0))).code == OK
        assert (await half(shop, ids(4))).code == OK


# --- the HTTP port


async def get(port: int, path: str, user: str = "", password: str = "") -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    given = f"Authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}\r\n" if user else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{given}Connection: close\r\n\r\n".encode())
    raw = await soon(reader.read())
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_the_http_port_asks_who_it_is_and_lets_probes_pass(tmp_path: Path) -> None:
    async with serving_users(tmp_path, http_port=0) as users:
        port = users.running.ports.http
        assert port is not None
        await users.add("shop", SHOP)
        await users.add("desk", ("describe:*",), password="correct horse battery")
        assert (await get(port, "/health"))[0] == 200
        for path in ("/transactions/undecided", "/transactions/damaged", "/transactions/undecided?group=shop"):
            assert (await get(port, path))[0] == 401
            assert (await get(port, path, "desk", "wrong"))[0] == 401
            assert (await get(port, path, "nobody", "correct horse battery"))[0] == 401
            assert (await get(port, path, "desk", "correct horse battery"))[0] == 200
            assert (await get(port, path, "desk", users.secrets["desk"]))[0] == 200
        shop = "shop", users.secrets["shop"]
        assert (await get(port, "/transactions/undecided", *shop))[0] == 403
        assert (await get(port, "/transactions/undecided?group=shop", *shop))[0] == 200
        assert (await get(port, "/transactions/undecided?group=bank", *shop))[0] == 403
    refused = [one for one in events(tmp_path) if one["event"] == "refused"]
    assert {one["command"] for one in refused} == {"GET /transactions/undecided", "GET /transactions/damaged"}


# --- what a review tried


async def test_who_is_no_administrator_any_more_changes_nobody_though_he_asked_before(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("old", ("administer:*",))
        old, desk = await users.client("old"), await users.client("root")
        waiting = users.running.broker._users._changing

        def change(client: RawClient, name: str) -> "asyncio.Task[Answer]":
            made = UserChange(
                name, True, permissions=["administer:*"], password="correct horse"
            )  # hashing takes its time
            return asyncio.create_task(client.ask(codes.HMQ_SET_USER, {}, CHANGE.encode(made)))

        before = [change(desk, f"new{number}") for number in range(6)]
        await until(lambda: len(waiting) == 6, "changes wait")
        leave = asyncio.create_task(desk.ask(codes.HMQ_REMOVE_USER, {"user": "old", "reason": "left"}))
        await until(lambda: len(waiting) == 7, "the removal waits behind them")
        after = [change(old, f"late{number}") for number in range(3)]
        await until(lambda: len(waiting) == 10, "what he asks for waits behind that")
        assert [answer.code for answer in await asyncio.gather(*before, leave)] == [OK] * 7
        await asyncio.gather(*after, return_exceptions=True)
        await until(lambda: not waiting, "nothing is under way")
        assert await listed(users) == {"root", *(f"new{number}" for number in range(6))}


async def listed(users: WithUsers) -> set[str]:
    answer = await users.administrator.ask(codes.HMQ_USERS, {"max": "100"})
    return {one.user for one in USERS.decode(answer.body)}


async def test_the_group_that_all_java_clients_have_gives_nobody_a_right(tmp_path: Path) -> None:
    """Replies, epochs, fences and checks of it, and half batches in it."""
    inner = "CLIENT_INNER_PRODUCER"
    async with serving_users(tmp_path) as users:
        await users.add("none")
        none = await users.client("none")
        heartbeat = json.dumps(
            {"clientID": "j", "producerDataSet": [{"groupName": inner}], "consumerDataSet": []}
        ).encode()
        assert (await none.ask(RequestCode.HEART_BEAT, {}, heartbeat)).code == OK
        assert (await none.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(inner, "T"), b"forged")).code == NO
        for code, fields in (
            (codes.HMQ_TAKE_EPOCH, {"group": inner, "coordinator": "c", "takenBy": "x"}),
            (codes.HMQ_FENCE, {"group": inner, "txId": "chosen", "since": "0"}),
            (codes.HMQ_POLL_CHECKS, {"group": inner, "clientId": "j", "waitMs": "0"}),
        ):
            assert (await none.ask(code, fields)).code == NO, code
        await users.add("junk", ("send:topic:junk",))
        junk = await users.client("junk")
        prepare = {
            "group": inner, "topic": "junk", "queueId": "0", "messages": "1", "checksum": "0", "index": "0", "txId": ids(1),
        }  # fmt: skip
        assert (await junk.ask(codes.HMQ_PREPARE_BATCH, prepare, b"x")).code == NO
        assert (await send(junk, inner, "junk")).code == OK


async def test_a_query_is_of_who_may_decide_for_its_topic(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add(
            "evil", ("send:topic:junk", "send:group:halfmq-spark", "decide:group:halfmq-spark", "decide:topic:junk")
        )
        evil = await users.client("evil")
        prepare = {
            "group": "halfmq-spark", "topic": "junk", "queueId": "0", "messages": "1", "checksum": "0", "index": "0",
            "query": "q1", "batch": "0", "run": "r", "attempt": "a",
        }  # fmt: skip
        for topic in ("orders", ""):
            assert (await evil.ask(codes.HMQ_PREPARE_BATCH, {**prepare, "queryTopic": topic}, b"x")).code == NO
        assert (await evil.ask(codes.HMQ_PREPARE_BATCH, {**prepare, "queryTopic": "junk"}, b"x")).code != NO


async def test_a_client_id_stays_its_users_while_that_is_away(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await users.add("none")
        shop, none = await users.client("shop"), await users.client("none")
        heartbeat = json.dumps({"clientID": "10.0.0.1@42", "producerDataSet": [], "consumerDataSet": []}).encode()
        assert (await shop.ask(RequestCode.HEART_BEAT, {}, heartbeat)).code == OK
        await shop.close()
        assert (await none.ask(RequestCode.HEART_BEAT, {}, heartbeat)).code == NO
        again = await users.client("shop")
        assert (await again.ask(RequestCode.HEART_BEAT, {}, heartbeat)).code == OK


async def test_a_number_used_again_hides_nothing_from_the_audit_log(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        await half(await users.client("shop"), ids(1))
        desk = users.administrator
        resolve = {"group": "shop", "txId": ids(1), "verdict": "COMMIT", "operator": "x", "reason": "y"}
        for code, fields in (
            (codes.HMQ_RESOLVE, resolve),
            (9_999, {}),
            (codes.HMQ_ASK_PARKED, {"group": "shop", "max": "1"}),
        ):
            desk.write(json_frame(code, fields, b"", opaque=777_777, flag=2 if code == 9_999 else 0))
        assert (await desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == OK
        assert (await users.change(UserChange("shop", False, permissions=["send:topic:a"], reason="moved"))).code == OK
    found = events(tmp_path)
    assert [one["event"] for one in found if one.get("command") == "HMQ_RESOLVE"] == ["done"]
    assert [one for one in found if one.get("command") == "HMQ_ASK_PARKED"]
    (last,) = [one for one in found if one.get("operator") == "moved"]
    assert last["on"] == ["user 'shop'"]


async def test_a_rate_is_not_escaped_by_connecting_again(tmp_path: Path) -> None:
    async with serving_users(tmp_path) as users:
        secret = await users.add("shop", SHOP, limits=UserLimits(requests_per_s=20))
        loop = asyncio.get_running_loop()
        began, done = loop.time(), 0
        while loop.time() - began < 1:
            client = await users.running.client()
            await log_in(client, "shop", secret)
            done += (await send(client)).code == OK
            await client.close()
        assert done <= 40


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[31m", "x" * 401])
async def test_a_reason_is_one_line_of_printable_text(tmp_path: Path, reason: str) -> None:
    async with serving_users(tmp_path) as users:
        await users.add("shop", SHOP)
        refused = await users.change(UserChange("shop", False, reason=reason, permissions=["send:topic:a"]))
        assert refused.code == ResponseCode.INVALID_PARAMETER
        refused = await users.administrator.ask(codes.HMQ_REMOVE_USER, {"user": "shop", "reason": reason})
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert await listed(users) == {"root", "shop"}
