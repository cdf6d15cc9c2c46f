"""Locks between real processes: held, waited for, told apart, and free at once when the owner dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenmill.locks import Taken, locked, owned, owner_of

HOLD = """
import sys, time
from pathlib import Path
from tokenmill.locks import owned
with owned(Path(sys.argv[1]), {"who": "child"}):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def other_owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        yield owner
    finally:
        owner.kill()
        owner.communicate()


def test_a_lock_has_one_owner_who_says_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert owner_of(path) is None
    with other_owner(path) as owner:
        assert owner_of(path) == {"who": "child"}
        with pytest.raises(Taken, match="child"), owned(path, {}):
            pass
        owner.kill()
        owner.wait()
        assert owner_of(path) is None
        with owned(path, {"who": "us"}):
            assert owner_of(path) == {"who": "us"}


def test_a_look_does_not_get_in_the_way_of_an_owner_to_be(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            owner_of(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with owned(path, {}):
                time.sleep(0.001)
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_waiting_takes_turns_and_sharers_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    order = []

    def wait_for_the_turn() -> None:
        with locked(path):
            order.append("alone")

    with locked(path, shared=True), locked(path, shared=True):
        waiting = threading.Thread(target=wait_for_the_turn)
        waiting.start()
        time.sleep(0.1)
        order.append("shared")
    waiting.join(timeout=30)
    assert order == ["shared", "alone"]
