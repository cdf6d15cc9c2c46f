"""Nights over corpora that the tests write: prepare, then validate, in one process.

The text is of made-up words with Zipf frequencies, so that honest nights differ as honest nights do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.corpus.settings import CorpusSettings
from tokenmill.quality.reference import LastGood, write_last_good
from tokenmill.quality.settings import ChecksSettings
from tokenmill.quality.validation import Validation, validate_snapshot
from tokenmill.quality.verdict import Finding
from tokenmill.tokens.builder import SilentHooks
from tokenmill.tokens.manifest import Manifest, read_manifest
from tokenmill.tokens.pinning import what_was_asked_for
from tokenmill.tokens.prepare import PrepareRequest, prepare
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.workspace import Workspace, publish_folder, write_json

PIPELINE = "test"
LATIN = "ba be bi bo da de di do fa fe ga go la le li lo ma me mi mo na ne no pa pe ra re ri ro sa se so ta the ing"
OTHER_LATIN = "szcz przy wie cho dzi ją ęcie ów rzeć czy mny gło śmi źdź nąć łka trz"
CYRILLIC = "жи ши ча ща вод рек лес дом пол гор мор ночь день сло"
GEORGIAN = "აბ გდე ვზ თი კლმ ნო"


class Language:
    """Words of 1 to 4 syllables; word number n is drawn in proportion to 1/n."""

    def __init__(self, syllables: str, words: int = 1500, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._words = ["".join(random.choice(syllables.split(), random.integers(1, 5))) for _ in range(words)]
        weights = 1 / np.arange(1, words + 1)
        self._shares = weights / weights.sum()

    def documents(self, count: int, seed: int, mean_words: int = 120) -> list[str]:
        random = np.random.default_rng(seed)
        texts = []
        for _ in range(count):
            words = random.choice(self._words, max(8, int(random.gamma(3, mean_words / 3))), p=self._shares)
            texts.append(" ".join(words).capitalize() + ".")
        return texts


ENGLISH = Language(LATIN)
HONEST: dict[str, list[str]] = {"web": ENGLISH.documents(300, seed=1), "notes": ENGLISH.documents(120, seed=2)}


@dataclass
class Nights:
    """One pipeline's nights in one folder."""

    folder: Path
    tokens: dict[str, Any] = field(default_factory=lambda: {"sequence_length": 128, "eval_fraction": 0.1})
    tokenizer: dict[str, Any] = field(default_factory=lambda: {"vocab_size": 700})
    checks: dict[str, Any] = field(default_factory=dict)

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(str(self.folder / "workspace"))

    def copy_to(self, folder: Path) -> Nights:
        """The same nights so far, to go on from in another way."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Nights(folder, dict(self.tokens), dict(self.tokenizer), dict(self.checks))

    def prepare(self, sources: Mapping[str, Sequence[str | bytes]]) -> str:
        """A snapshot of these documents. Bytes are lines that are no JSON of ours."""
        shutil.rmtree(self.folder / "corpus", ignore_errors=True)
        for name, texts in sources.items():
            lines = [
                text if isinstance(text, bytes) else json.dumps({"text": text}, ensure_ascii=False).encode()
                for text in texts
            ]
            path = self.folder / "corpus" / name / "part.jsonl"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"\n".join(lines) + b"\n")
        settings = {
            "sources": [
                {"name": name, "root": str(self.folder / "corpus" / name), "include": ["*.jsonl"]} for name in sources
            ],
            "max_refused_pct": 100,
        }
        request = PrepareRequest(
            self.workspace,
            PIPELINE,
            CorpusSettings.model_validate(settings),
            TokenizerSettings.model_validate(self.tokenizer),
            TokensSettings.model_validate(self.tokens),
            {name: str(self.folder / "corpus" / name) for name in sources},
        )
        return prepare(request, SilentHooks()).snapshot

    def validate(self, snapshot: str) -> Validation:
        """As the stage does: the last good one moves after a pass or a warning."""
        checks = ChecksSettings.model_validate(self.checks)
        found = validate_snapshot(self.workspace, PIPELINE, snapshot, checks, lambda label, done, total: None)
        if found.verdict.verdict != "fail":
            settings = what_was_asked_for(self.workspace, PIPELINE)
            write_last_good(self.workspace, PIPELINE, LastGood(snapshot, found.folder, found.reference, settings))
        return found

    def night(self, sources: Mapping[str, Sequence[str | bytes]]) -> Validation:
        return self.validate(self.prepare(sources))

    def rewrite_manifest(self, snapshot: str, **changes: Any) -> str:
        """A snapshot like `snapshot` whose manifest says something else, under its own proper id."""
        manifest = read_manifest(self.workspace.snapshot(snapshot))
        return self.publish(manifest.model_copy(update=changes), snapshot)

    def publish(self, manifest: Manifest, tables_of: str) -> str:
        made = manifest.snapshot_id()
        with publish_folder(self.workspace.snapshot(made)) as folder:
            for name in ("sources", "refused", "duplicates"):
                shutil.copy(self.workspace.snapshot(tables_of) / f"{name}.parquet", folder)
            write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
        return made

    def first_shard(self, snapshot: str) -> Path:
        return self.workspace.shard(read_manifest(self.workspace.snapshot(snapshot)).shards[0].key)


def finding(validation: Validation, rule: str) -> Finding:
    return next(finding for finding in validation.verdict.findings if finding.rule == rule)


def violated(validation: Validation) -> dict[str, str]:
    """Rules that are violated, with their sentences."""
    return {f.rule: f.sentence for f in validation.verdict.findings if f.outcome in {"warn", "fail"}}
