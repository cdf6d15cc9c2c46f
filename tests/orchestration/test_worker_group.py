"""Several processes as one stage: one output, one exit code, and an end in bounded time whichever of them fails."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tasks.runtime import _LocalProcess
from tasks.workers import WorkerGroup, cluster_environments, loopback_addresses, shared_cores
from tokenmill.protocol import of_worker, worker_index

pytestmark = pytest.mark.integration

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
# As TensorFlow while it waits for a peer.
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("polite", flush=True)
time.sleep(600)
"""
TELLING = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
print(config["task"]["index"], len(config["cluster"]["worker"]))
"""


def group(*programs: str, grace_seconds: float = 0.5) -> WorkerGroup:
    told = cluster_environments(loopback_addresses(len(programs)))
    return WorkerGroup(
        [_LocalProcess([sys.executable, "-u", "-c", code], each) for code, each in zip(programs, told, strict=True)],
        grace_seconds,
    )


def test_each_worker_is_told_who_it_is_and_their_lines_come_together() -> None:
    workers = group(TELLING, TELLING, TELLING)
    assert sorted(workers.output.read().splitlines()) == [b"0 3", b"1 3", b"2 3"]
    assert workers.wait(30) == 0
    workers.close()


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(("program", "code"), [("exit(3)", 3), ("exit(75)", 75)])
def test_a_worker_that_fails_ends_the_others_though_they_do_not_hear(program: str, code: int, failing: int) -> None:
    programs = [DEAF, DEAF]
    programs[failing] = program
    workers = group(*programs)
    assert workers.wait(60) == code
    said = [json.loads(line) for line in workers.output.read().splitlines() if line.startswith(b"{")]
    assert [line["message"].split(";")[0] for line in said] == [f"worker {failing} has ended (exit code {code})"]
    workers.close()


def test_a_worker_that_is_killed_is_the_cause() -> None:
    workers = group(DEAF, POLITE)
    assert {workers.output.readline(), workers.output.readline()} == {b"deaf\n", b"polite\n"}
    workers._workers[1].send(signal.SIGKILL)
    assert workers.wait(60) == -signal.SIGKILL
    workers.close()


def test_a_chief_that_is_done_does_not_wait_for_ever() -> None:
    workers = group("pass", DEAF)
    # It may be asked before it has turned deaf.
    assert workers.wait(60) in (-signal.SIGKILL, -signal.SIGTERM)
    workers.close()


def test_a_stop_reaches_all() -> None:
    workers = group(POLITE, POLITE)
    assert workers.wait(0) is None
    assert [workers.output.readline() for _ in range(2)] == [b"polite\n"] * 2
    workers.send(signal.SIGTERM)
    assert workers.wait(60) == 75
    workers.close()


def test_names_and_threads_of_workers() -> None:
    assert worker_index({}) == 0
    assert [worker_index(each) for each in cluster_environments(["a:1", "b:2"])] == [0, 1]
    assert [of_worker("stacks.txt", worker) for worker in (0, 2)] == ["stacks.txt", "stacks-worker-2.txt"]
    assert shared_cores({"OMP_NUM_THREADS": "5", "PATH": "/"}, 2) == {"OMP_NUM_THREADS": "2"}
    assert shared_cores({"OMP_NUM_THREADS": "1"}, 2) == {"OMP_NUM_THREADS": "1"}
