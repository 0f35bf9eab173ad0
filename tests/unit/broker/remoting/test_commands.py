"""The table of commands: every code that is served has one row, and what the row says of its fields is so."""

from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.worst_requests import REQUESTS

from halfmq.broker.remoting.commands import COMMANDS, fields_of
from halfmq.broker.services.access import InBody, InField
from halfmq.model.users import Right, Scope
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode

OURS = {name: code for name, code in vars(codes).items() if name.startswith("HMQ_")}
#: Sent by the broker, or refused by name (``RequestCode``).
NOT_SERVED = {
    RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG, RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}  # fmt: skip


async def test_every_command_of_the_table_has_a_handler_and_no_other_code_has_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        gateway = running.broker._gateway
        assert set(gateway.handlers) == set(COMMANDS) == {*RequestCode, *OURS.values()} - NOT_SERVED
        code = RequestCode.SEND_MESSAGE
        with pytest.raises(AssertionError, match="two handlers"):
            gateway.bind(code, COMMANDS[code], None, lambda connection, request: None, running.state)


#: What a field of this name names. A command that has one says so in its row.
NAMES = {
    "topic": Scope.TOPIC, "topics": Scope.TOPIC, "query_topic": Scope.TOPIC,
    "group": Scope.GROUP, "producer_group": Scope.GROUP, "consumer_group": Scope.GROUP, "group_name": Scope.GROUP,
}  # fmt: skip
#: Fields with such names that no right depends on: 33 names the message by its offset, replies go to a client, and statistics of a group
#: are the group's.
NOT_NEEDED = {
    (RequestCode.VIEW_MESSAGE_BY_ID, "topic"), (RequestCode.SEND_REPLY_MESSAGE, "topic"), (RequestCode.SEND_REPLY_MESSAGE_V2, "topic"),
    (RequestCode.GET_CONSUME_STATS, "topic"),
}  # fmt: skip
#: What the body of a request names besides its fields. The others with a body: messages, limits, counts, offsets of topics in the fields,
#: ids of transactions, users, and 200, whose body is read into its fields.
IN_BODIES = {34, 41, 42, 46, 400, 401}
OTHER_BODIES = {
    10, 200, 310, 320, 324, 325, codes.HMQ_POSITION, codes.HMQ_PRODUCER, codes.HMQ_PREPARE_BATCH, codes.HMQ_DECIDE, codes.HMQ_UNDECIDED,
    codes.HMQ_SET_USER,
}  # fmt: skip


@pytest.mark.parametrize("code", COMMANDS)
def test_a_row_says_a_right_on_everything_that_its_request_names(code: int) -> None:
    needs, kind = COMMANDS[code].access.needs, fields_of(code)
    fields = set(() if kind is None else kind.__struct_fields__)
    by = {need.field: need.scope for need in needs if isinstance(need, InField)}
    assert by.keys() <= fields
    assert {name for name in fields.intersection(NAMES) if (code, name) not in NOT_NEEDED} == by.keys()
    assert all(NAMES[name] is scope for name, scope in by.items())
    assert bool(REQUESTS[code][1]) == (code in IN_BODIES | OTHER_BODIES)
    assert any(isinstance(need, InBody) for need in needs) == (code in IN_BODIES)


@pytest.mark.parametrize("code", IN_BODIES)
def test_a_row_says_the_rights_on_what_its_body_names(code: int) -> None:
    (need,) = COMMANDS[code].access.needs
    assert isinstance(need, InBody)
    assert {(one.right, one.scope) for one in need.read(REQUESTS[code][1])} == set(need.needs)


#: What a row for operators changes for them.
OPERATED = {Right.ADMINISTER, Right.SETTLE}
#: Their bodies are typed, and refuse fields that they do not know; or they change nothing.
WITHOUT_RULES = {
    codes.HMQ_SET_USER, codes.HMQ_USERS, codes.HMQ_REMOVE_USER, RequestCode.GET_CONSUMER_RUNNING_INFO,
    codes.HMQ_SETTINGS,
    codes.HMQ_BACKUP_BEGIN, codes.HMQ_BACKUP_READ, codes.HMQ_BACKUP_END,
}  # fmt: skip


def test_what_operators_change_has_rules_and_nothing_else_but_an_offset() -> None:
    operated = {code for code, command in COMMANDS.items() if command.access.rights & OPERATED}
    assert {code for code, command in COMMANDS.items() if command.rules} - operated == {
        RequestCode.UPDATE_CONSUMER_OFFSET
    }
    assert {code for code in operated if not COMMANDS[code].rules} == WITHOUT_RULES


def test_what_is_of_clients_alone_is_not_for_operators() -> None:
    """They list, settle and repair while all places for clients are taken."""
    assert {code for code, command in COMMANDS.items() if command.of_clients} == {
        10, 11, 34, 36, 310, 320, 361, codes.HMQ_FENCE, codes.HMQ_POLL_CHECKS, codes.HMQ_PREPARE_BATCH,
    }  # fmt: skip
    assert not any(c.of_clients for c in COMMANDS.values() if c.access.rights & (OPERATED | {Right.DESCRIBE}))
    assert {code for code, command in COMMANDS.items() if command.while_draining} == {35, 37}
    assert {code for code, command in COMMANDS.items() if command.of_strangers} == {codes.HMQ_LOGIN}
