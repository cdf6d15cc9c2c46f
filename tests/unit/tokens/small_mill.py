"""A small corpus, prepared: `mill.prepare()` runs the room's own entry on files that the test writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.corpus.settings import CorpusSettings
from tokenmill.tokens.prepare import Prepared, PrepareRequest, prepare
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.tokens.snapshot import Snapshot, open_snapshot
from tokenmill.workspace import Workspace

WORDS = ["mill", "grain", "stone", "water", "wheel", "flour", "sack", "night", "Korn", "Mühle", "水车", "磨坊", "🌾"]


@dataclass
class Hooks:
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("test"))
    stop_after: int | None = None
    """Raise at the so-many-th question whether to stop."""

    def progress(self, label: str, done: int, total: int | None, unit: str, detail: str = "") -> None:
        pass

    def check_stop(self) -> None:
        from tokenmill.errors import Interrupted

        if self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                raise Interrupted("asked to stop")


@dataclass
class Mill:
    corpus_root: Path
    workspace: Workspace
    corpus: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=lambda: {"sequence_length": 32, "eval_fraction": 0.1})
    tokenizer: dict[str, Any] = field(default_factory=lambda: {"vocab_size": 320})

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.corpus_root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def request(self) -> PrepareRequest:
        source = {"name": "all", "root": str(self.corpus_root), **self.source}
        corpus = {"sources": [source], "max_refused_pct": 100, **self.corpus}
        return PrepareRequest(
            self.workspace,
            "test",
            CorpusSettings.model_validate(corpus),
            TokenizerSettings.model_validate(self.tokenizer),
            TokensSettings.model_validate(self.tokens),
            {item["name"]: item["root"] for item in corpus["sources"]},
        )

    def prepare(self, hooks: Hooks | None = None) -> Prepared:
        return prepare(self.request(), hooks or Hooks())

    def open(self, **options: bool) -> Snapshot:
        return open_snapshot(self.workspace, self.prepare().snapshot, **options)


def make_texts(count: int, seed: int = 0, longest: int = 60) -> list[str]:
    """Distinct documents of some words each."""
    random = np.random.default_rng(seed)
    return [
        f"{number}/{seed}: " + " ".join(random.choice(WORDS, int(random.integers(1, longest))))
        for number in range(count)
    ]
