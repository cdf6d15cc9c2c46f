"""What mapped tasks add to the build of 2,000 shard groups, in seconds, by how many groups a batch holds.

Each batch's own work is left out: what is timed is Prefect, its client and a real server with its database, on this
machine. Used by `benchmarks.flow`; alone: `python -m benchmarks.mapping` with PREFECT_API_URL.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

GROUPS = 2000


def main(batches: int, machines: int = 8) -> float:
    from prefect import flow
    from prefect.client.schemas import State
    from prefect.states import Completed

    from tasks.prepare import map_batches

    def nothing(batch: int) -> State:
        return Completed(message=f"batch {batch}")

    @flow(name="map", persist_result=False)
    def mapped() -> int:
        return sum(state.is_completed() for state in map_batches(nothing, batches, machines))

    begun = time.monotonic()
    assert mapped() == batches
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    print(json.dumps(main(int(sys.argv[1]))))
