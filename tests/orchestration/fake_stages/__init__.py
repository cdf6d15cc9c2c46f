"""Stages that speak the real protocol and do in no time what a test tells them to.

A test writes `script/<stage>` into the workspace: a line for each start, taken from the top. No line means `complete`.
"""

from __future__ import annotations

import os
import signal
import time

from tokenmill.errors import Interrupted, UserError
from tokenmill.protocol import LogLine, StageResult
from tokenmill.stages.harness import StageContext


def act(context: StageContext, result: StageResult) -> StageResult:
    order = take(context)
    match order.split():
        case ["complete"]:
            return result
        case ["fail"]:
            raise RuntimeError("a fault of the stage's own")
        case ["mend"]:
            raise UserError("corpus: 'x' is empty; put a document into it")
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["preempt"]:
            raise Interrupted("the machine goes away")
        case ["wait"]:
            context.log.info("waiting")
            while not context.stop:
                time.sleep(0.01)
            context.stop.check()
        case ["eat"]:
            context.log.info("held %d bytes", len(bytearray(os.urandom(1) * 2**31)))
        case ["deaf"]:
            context.log.info("waiting")
            time.sleep(300)
        case ["alarm"]:
            event = {"name": "alarm", "alarm": "low_utilisation", "cause": "input_bound", "usd_per_hour_wasted": 0.6}
            line = LogLine(level="WARNING", message="alarm: the device waits", time=time.time(), event=event)
            print(line.model_dump_json(), flush=True)
            return result
        case ["hang"]:
            take_steps(context, 5)
            time.sleep(300)
        case [status]:
            return result.model_copy(update={"status": status})
    raise AssertionError(order)


def take_steps(context: StageContext, count: int) -> None:
    """What a trainer leaves in the ledger, a step a twentieth of a second."""
    context.phases.switch("step")
    for step in range(1, count + 1):
        time.sleep(0.05)
        context.ledger.write("steps", step=step, cursor=4 * step, processed_tokens=0, nonpadding_tokens=0)


def take(context: StageContext) -> str:
    script = context.workspace.root / "script" / context.spec.stage
    lines = script.read_text().splitlines() if script.exists() else []
    if not lines:
        return "complete"
    script.write_text("\n".join(lines[1:]))
    return lines[0]
