"""How a trainer under test takes turns with the others. Plain Python: peers import it in their own environments.

The bench starts every trainer, lets each warm up, and then gives turns: one line with a number of updates on standard
input, answered by one line that starts with `@@` on standard output once they are done. 0 ends the process, which
answers with its peak memory. So trainers run in turns of seconds, one at a time, on the same minutes of the machine.
"""

import json
import os
import resource
import sys

WARM_UP_UPDATES = 2
BATCH, LAYERS, WIDTH, HEADS, VOCABULARY = 16, 6, 384, 6, 8192
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP_NORM = 1e-3, (0.9, 0.95), 0.1, 1.0


class Turns:
    """Call `step` after each update; it returns when the next one may start."""

    def __init__(self) -> None:
        self.left = WARM_UP_UPDATES
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever libraries print goes to standard error

    def step(self, updates: int = 1) -> None:
        self.left -= updates
        if self.left > 0:
            return
        self._answer({})
        self.left = int(sys.stdin.readline() or 0)
        if self.left == 0:
            self._answer({"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
            os._exit(0)

    def _answer(self, answer: dict) -> None:  # type: ignore[type-arg]
        self._answers.write("@@" + json.dumps(answer) + "\n")
        self._answers.flush()
