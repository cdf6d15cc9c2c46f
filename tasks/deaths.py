"""Flow processes that died without a word (killed, out of memory, a lost machine) and were started again by themselves.

The supervisor counts the crashes of stages; nobody but the next start can count those of the flow. As many in a row as
`runtime.max_attempts_without_progress`, and none of them with a newly committed step, end the night: it then waits for
a person.
"""

from __future__ import annotations

from itertools import takewhile

from tasks.night import Night, NightOver
from tokenmill.invocations import DIED, list_invocations


def refuse_endless_deaths(night: Night) -> None:
    """Raises `NightOver` if the pipeline's starts have died too often."""
    mine = night.invocation
    earlier = (item for item in list_invocations(night.workspace) if item.pipeline == night.name and item.id != mine.id)
    in_a_row = takewhile(
        lambda item: item.message == DIED and (item.run_id, item.step) == (mine.run_id, mine.step),
        reversed(list(earlier)),
    )
    deaths = len(list(in_a_row))
    if deaths >= night.pipeline.runtime.max_attempts_without_progress:
        where = "before it had a run" if night.run is None else f"at step {mine.step:,}"
        raise NightOver(
            "crashed",
            f"the flow's process died {deaths} times in a row {where}; look for the cause (memory?), "
            "then start the pipeline by hand",
        )
