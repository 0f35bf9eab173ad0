"""The attack, short: nothing is read, changed or settled, and every refusal is in the audit log. What it costs others is not judged."""

from pathlib import Path

import pytest

from tests.attack.attack import run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_user_without_rights_gets_nothing(tmp_path: Path) -> None:
    result = run(20, 1, 4, tmp_path)
    problems = [problem for problem in result["problems"] if not problem.startswith("p99")]
    assert not problems, result
    assert result["attack"]["16"] > 200, result
    assert result["committed"] > 100, result
