"""docs/users.md, as an administrator follows it: its commands, one after the other, against the broker of its first one."""

import json
import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from halfmq.client.async_client import NO_GROUP
from halfmq.model.users import Right, parse_permissions
from halfmq.spark.options import GROUP_DEFAULT as READERS_GROUP
from halfmq.spark.sink.options import GROUP_DEFAULT as WRITERS_GROUP
from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT, commands, quotes, table
from tests.documents.shell import shell
from tests.support.ports import free_port

_HERE: Final = "tests/documents/test_users_page.py"
_PAGE: Final = "docs/users.md"


@pytest.mark.slow
def test_the_commands_run_one_after_the_other(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl here: apt-get install curl")
    begin, limits, rotation, removal, http = blocks_of(f"{_HERE}::test_the_commands_run_one_after_the_other")
    ports = {"9876": str(free_port()), "8080": str(free_port())}
    (tmp_path / "password").write_text("a password for people")
    serve, *first = commands(begin)
    script = [
        f"{serve} --port 0 --name-port 9876 --http-port 8080 --no-vip-channel --segment-bytes 1048576 --ports-file ports.json 2> log.txt"
        " & broker=$!; trap 'kill $broker; wait $broker' EXIT",
        "until test -s ports.json; do kill -0 $broker && sleep 0.05; done",
        *first,
        *commands(limits),
        *commands(http),
        *commands(rotation),
            "halfmq user list --json > listed.json",
        *commands(removal),
    ]  # fmt: skip
    text = "\n".join(script)
    for shown, port in ports.items():
        text = text.replace(shown, port)
    done = shell(text, tmp_path)
    said = done.stdout
    assert "everything (administrator)" in said
    assert "send:topic:orders-*, send:group:shop" in said
    listed = json.loads((tmp_path / "listed.json").read_text())
    (shop,) = [one for one in listed["users"] if one["user"] == "shop"]
    assert (shop["limits"]["undecided"], shop["limits"]["connections"], shop["secrets"]) == (1_000, 40, 2)
    assert shop["permissions"] == ["send:topic:orders-*", "send:topic:stock", "send:group:shop"]
    assert '"transactions"' in said, "of the HTTP port"
    assert said.rstrip().endswith("user shop is removed")
    for file in ("alice.secret", "shop.secret"):
        secret = (tmp_path / file).read_text().strip()
        assert secret
        assert secret not in done.stdout + done.stderr + (tmp_path / "log.txt").read_text()


def test_every_right_has_its_row_and_every_permission_is_one() -> None:
    assert [row["right"].strip("`") for row in table(_PAGE, "What a user may do")] == [
        "send", "consume", "describe", "settle", "administer", "decide", "read-undecided"
    ]  # fmt: skip
    assert {row["right"].strip("`") for row in table(_PAGE, "What a user may do")} == {right.value for right in Right}
    rights = "|".join(right.value for right in Right)
    found = [quote.text for quote in quotes(_PAGE) if re.match(rf"({rights}):", quote.text)]
    assert len(found) > 15
    for text in found:
        assert parse_permissions(text), text


def test_the_groups_that_programs_have_by_default_are_named() -> None:
    page = (ROOT / _PAGE).read_text()
    for group in (READERS_GROUP, WRITERS_GROUP, NO_GROUP):
        assert group in page
