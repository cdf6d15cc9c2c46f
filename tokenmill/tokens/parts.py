"""prepare in parts, for a corpus worth several machines: plan → build, batch by batch and in any order → commit.

    batches = plan(request, hooks, batch_bytes)          # reads what is new, pins the tokenizer, builds nothing
    for number in range(len(batches)):
        build(request, hooks, batches.name, number)      # anywhere that sees the workspace and the corpus
    prepare(request, hooks)                              # the commit: it finds the shards and writes the manifest

A shard is named by its content, so the parts need not trust one another: a batch that was lost, or built twice, or for
a corpus that has changed since, costs time and no byte. The commit builds what is still missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.errors import Interrupted
from tokenmill.tokens.prepare import PrepareRequest, build_only
from tokenmill.workspace import Workspace, read_json, write_json

if TYPE_CHECKING:  # builder brings pyarrow and the encoders: a prepare that finds nothing changed does without
    from tokenmill.tokens.builder import Hooks


@dataclass(frozen=True)
class Batches:
    """What a plan found missing. Each batch: keys of shards that follow one another, and their bytes of text."""

    name: str
    """Of the plan, for `build`; empty if nothing is missing."""
    batches: tuple[tuple[tuple[str, ...], int], ...]

    def __len__(self) -> int:
        return len(self.batches)


def plan(request: PrepareRequest, hooks: Hooks, batch_bytes: int) -> Batches:
    """Read the corpus and list the shards that have to be built, in batches of at least `batch_bytes` of text each.

    Raises as `prepare` does.
    """
    found = build_only(request, hooks, frozenset(), 0)
    if found is None:
        return Batches("", ())
    batches: list[tuple[tuple[str, ...], int]] = []
    keys: list[str] = []
    size = 0
    for key, text_bytes in dict(found.left).items():
        keys.append(key)
        size += text_bytes
        if size >= batch_bytes:
            batches.append((tuple(keys), size))
            keys, size = [], 0
    if keys:
        batches.append((tuple(keys), size))
    made = Batches(found.plan if batches else "", tuple(batches))
    if batches:
        write_json(_path(request.workspace, made.name), {"batches": made.batches})
    return made


def build(request: PrepareRequest, hooks: Hooks, plan_name: str, number: int) -> int:
    """Build one batch; how many shards were not there yet. Raises `Interrupted` if the corpus is another one by now."""
    keys, text_bytes = read_json(_path(request.workspace, plan_name))["batches"][number]
    done = build_only(request, hooks, frozenset(keys), text_bytes)
    if done is None:
        return 0
    if done.plan != plan_name:
        raise Interrupted("the corpus changed after it was planned; starting again plans it anew")
    return done.shards


def _path(workspace: Workspace, plan_name: str) -> Path:
    return workspace.root / "plans" / f"{plan_name}.batches.json"
