"""Prepare: documents in, a snapshot of packed token shards out.

Skipped when the pipeline has an unfinished run: that goes on with its own snapshot. Otherwise it always runs, and
returns in moments when nothing in the corpus changed.
"""

from __future__ import annotations

from functools import partial

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State

from tasks.again import until_done
from tasks.night import Night
from tasks.timeline import on_timeline
from tokenmill.protocol import StageName


def prepare(night: Night) -> str:
    """The id of the snapshot of today's corpus."""
    result = until_done(night, StageName.PREPARE, partial(prepare_task, night, return_state=True))
    return str(result.outputs["snapshot"])


@task(name="prepare", cache_policy=NO_CACHE, persist_result=False)
def prepare_task(night: Night) -> State:
    return on_timeline(night, StageName.PREPARE)
