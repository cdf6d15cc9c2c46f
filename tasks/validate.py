"""Validate: the gate between a snapshot and training. The verdict is an artifact, night by night under one key."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State

from tasks.again import until_done
from tasks.links import link
from tasks.night import Night
from tasks.timeline import artifact_key, on_timeline
from tokenmill.protocol import StageName
from tokenmill.workspace import read_json


def validate(night: Night) -> dict[str, Any]:
    """The verdict: which snapshot to train on, and the folder that lets it pass."""
    return until_done(night, StageName.VALIDATE, partial(validate_task, night, return_state=True)).outputs


@task(name="validate", cache_policy=NO_CACHE, persist_result=False)
def validate_task(night: Night) -> State:
    state = on_timeline(night, StageName.VALIDATE)
    outputs = night.outputs.get(StageName.VALIDATE, {})
    if "verdict" in outputs:
        markdown = (night.workspace.root / outputs["markdown"]).read_text(encoding="utf-8")
        create_markdown_artifact(markdown, key=artifact_key("verdict", night.name))
        link(night, "data-docs", f"{outputs['validation']}/data_docs/index.html", "Great Expectations' Data Docs")
        link(night, "validation", f"{outputs['validation']}/report.html", "the page about the data")
        create_table_artifact(read_json(night.workspace.root / outputs["table"]), key=artifact_key("rules", night.name))
    return state
