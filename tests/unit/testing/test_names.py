"""What ``halfmq.testing`` offers, and what it says where the broker's packages are missing."""

import subprocess
import sys

import pytest

import halfmq.testing


def test_every_name_is_there() -> None:
    for name in halfmq.testing.__all__:
        assert getattr(halfmq.testing, name).__class__ is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = halfmq.testing.Nothing


@pytest.mark.slow
def test_without_the_packages_of_the_broker_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['h11'] = None; from halfmq.testing import Broker"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr.rstrip().endswith("MissingDependency: h11 is not installed (pip install 'halfmq[server]')")
