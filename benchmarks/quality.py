"""What a validation costs: wall time, processor time and peak memory of the validate stage's work for many documents.

    python benchmarks/quality.py [--documents 1000000] [--workspace FOLDER]

The corpus is made up: words of a Zipf distribution, 40 a document on average, in two sources. The snapshot is prepared
first (not measured) and kept in the workspace, so that a second call measures at once. Each validation runs in a fresh
process: a first night, and a night with a reference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.corpus.settings import CorpusSettings
from tokenmill.tokens.builder import SilentHooks
from tokenmill.tokens.manifest import read_manifest
from tokenmill.tokens.prepare import PrepareRequest, prepare
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.workspace import Workspace

SYLLABLES = (
    "ba be bi da de di fa ga go la le li lo ma me mi mo na ne no pa ra re ri ro sa se so ta te to the ing ed er st"
)
PART_DOCUMENTS = 50_000
MEAN_WORDS = 40


def write_corpus(folder: Path, documents: int) -> None:
    random = np.random.default_rng(0)
    syllables = np.array(SYLLABLES.split())
    words = np.array(["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(20_000)], object)
    ends = np.cumsum(1 / np.arange(1, len(words) + 1))
    for number, start in enumerate(range(0, documents, PART_DOCUMENTS)):
        count = min(PART_DOCUMENTS, documents - start)
        lengths = np.maximum(4, random.gamma(2, MEAN_WORDS / 2, count)).astype(np.int64)
        drawn = words[np.searchsorted(ends, random.random(int(lengths.sum())) * ends[-1])].tolist()
        path = folder / ("web" if number % 4 else "notes") / f"part-{number:04d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        at = 0
        with path.open("w") as sink:
            for offset, length in enumerate(lengths.tolist()):
                text = f"{start + offset} " + " ".join(drawn[at : at + length])
                sink.write(json.dumps({"text": text}) + "\n")
                at += length


def make_snapshot(workspace: Workspace, documents: int) -> str:
    with tempfile.TemporaryDirectory(dir=workspace.root) as corpus:
        write_corpus(Path(corpus), documents)
        names = [path.name for path in sorted(Path(corpus).iterdir())]
        sources = [{"name": name, "root": str(Path(corpus) / name), "include": ["*.jsonl"]} for name in names]
        request = PrepareRequest(
            workspace,
            "benchmark",
            CorpusSettings.model_validate({"sources": sources}),
            TokenizerSettings(vocab_size=8192),
            TokensSettings.model_validate({"sequence_length": 512, "eval_fraction": 0.002}),
            {name: str(Path(corpus) / name) for name in names},
        )
        return prepare(request, SilentHooks()).snapshot


def measure(workspace: Path, snapshot: str, reference: str) -> dict[str, Any]:
    """In this process: validate once, and say what it took."""
    started = time.monotonic()
    from tokenmill.quality.settings import ChecksSettings
    from tokenmill.quality.validation import validate_snapshot

    opened = Workspace.open(str(workspace))
    checks = ChecksSettings.model_validate({"drift": {"reference": reference}})
    found = validate_snapshot(opened, "benchmark", snapshot, checks, lambda label, done, total: None)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_memory_mib": round(used.ru_maxrss / 1024),
        "verdict": found.verdict.verdict,
        "found": found.found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--workspace", type=Path, default=Path("workspace/benchmarks/quality"))
    parser.add_argument("--measure", nargs=2, metavar=("SNAPSHOT", "REFERENCE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.workspace, *arguments.measure)))
        return
    workspace = Workspace.open(str(arguments.workspace.resolve()))
    known = workspace.root / f"snapshot-{arguments.documents}"
    if not known.exists():
        known.write_text(make_snapshot(workspace, arguments.documents))
    snapshot = known.read_text()
    manifest = read_manifest(workspace.snapshot(snapshot))
    tokens = manifest.train.stored_tokens + manifest.eval.stored_tokens
    print(f"{manifest.documents_kept:,} documents, {tokens:,} tokens, {len(manifest.shards)} shards")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    shutil.rmtree(workspace.root / "validations", ignore_errors=True)
    for name, reference in (("first night", "none"), ("with a reference", snapshot)):
        command = [sys.executable, __file__, "--workspace", str(workspace.root), "--measure", snapshot, reference]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"{name}: {json.loads(done.stdout)}", flush=True)


if __name__ == "__main__":
    main()
