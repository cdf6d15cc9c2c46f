"""One writer a run: a second one is refused, and a dead one's place is free at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.training.lease import run_lease

HOLD = """
import sys, time
from pathlib import Path
from tokenmill.training.lease import run_lease
with run_lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_writer_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "abc")], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"run 'abc' is being trained by process {owner.pid} on"):
            run_lease(tmp_path / "abc").__enter__()
    finally:
        owner.kill()
        owner.communicate()
    with run_lease(tmp_path / "abc"):
        pass
    with run_lease(tmp_path / "abc"):
        pass
