"""Whole nights on disk, as prepare, validate, train and their supervisor leave them: input for reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb

from tests.unit.cost.ledgers import FakeAttempt
from tokenmill.workspace import Workspace, write_json

MIDNIGHT = 1_790_000_000.0
SEQUENCE = 256
BATCH = 32
STEP_TOKENS = SEQUENCE * BATCH
STEP_NONPADDING = 7_900
STEP_SECONDS = 0.5


class Night:
    """Builds one invocation (and its run) stage by stage; the clock goes on from stage to stage."""

    def __init__(
        self, workspace: Workspace, name: str, *, at: float = MIDNIGHT, run_id: str | None = None, **spawned: Any
    ):
        self.workspace, self.name, self.now, self.run_id, self.spawned = workspace, name, at, run_id, spawned
        self.record: dict[str, Any] = {
            "id": name,
            "pipeline": "demo",
            "started": at,
            "ended": None,
            "run_id": run_id,
            "outcome": "running",
            "message": "",
            "stages": [],
        }

    def stage(
        self, stage: str, phase: str, seconds: float, *, code: int = 0, status: str = "completed", **outputs: Any
    ) -> None:
        number = len(self.record["stages"]) + 1
        path = self.workspace.invocation(self.name) / "ledger" / f"{number:02d}-{stage}.jsonl"
        fake = FakeAttempt(path, stage, at=self.now, invocation_id=self.name, **self.spawned)
        fake.boot(1.2)
        fake.work(phase, seconds)
        fake.end(code, "completed" if code == 0 else "user_error" if code == 2 else "crashed")
        self.done(fake, stage, status, outputs)

    def done(self, fake: FakeAttempt, stage: str, status: str, outputs: dict[str, Any], message: str = "") -> None:
        self.now = fake.now + 0.1
        ledger = self.workspace.relative(fake.path)
        self.record["stages"].append(
            {"stage": stage, "status": status, "message": message, "outputs": outputs, "ledger": ledger}
        )

    def prepare(self, seconds: float = 14.0) -> None:
        snapshot = "77c1d2e3f4a5b6c7"
        shard = self.workspace.shard("c0ffee")
        shard.mkdir(parents=True, exist_ok=True)
        # 9,000 short documents and 200 that go on in a fourth row: 9,800 rows, one document a row; 280 are held out.
        documents = """SELECT CASE WHEN i < 200 THEN 800 ELSE 250 - i % 64 END AS tokens, i >= 9200 AS held_out
                       FROM range(9480) AS documents(i)"""
        duckdb.sql(f"COPY ({documents}) TO '{shard / 'documents.parquet'}' (FORMAT parquet)")
        split = {"tokens": 2_000_000, "padding_tokens": 92_400, "split_documents": 200}
        manifest = {
            "tokenizer": "5a5a",
            "vocab_size": 4096,
            "sequence_length": SEQUENCE,
            "train": {"documents": 9_200, "rows": 8_170, "stored_rows": 8_170, **split},
            "eval": {"documents": 280, "rows": 240, "stored_rows": 240, **split},
            "shards": [{"key": "c0ffee"}],
        }
        write_json(self.workspace.snapshot(snapshot) / "manifest.json", manifest)
        self.stage("prepare", "prepare", seconds, snapshot=snapshot, documents=9_480, train_tokens=2_570_000)

    def validate(self, verdict: str = "pass", seconds: float = 6.0, refused: str | None = None) -> None:
        """`refused` is a snapshot in whose place the last good one is trained on."""
        sentences = ["9,480 documents, 0.4 % of them duplicates.", "3.41 bytes a token, within 1.2 to 8."]
        code, status, extra = 0, "completed", dict[str, Any]()
        if verdict == "fail":
            sentences.insert(0, "61 % of the documents are duplicates, 50 % are allowed.")
            code, status, extra = 2, "failed", {"user_error": True}
        elif refused:
            verdict, extra = "fail", {"refused": {"snapshot": refused, "sentence": "It is base64."}}
        self.stage(
            "validate", "validate", seconds, code=code, status=status,
            verdict=verdict, validation="validations/77c1/r1", rules="r1", snapshot="77c1d2e3f4a5b6c7",
            unigram_entropy_nats=6.482, sentences=sentences, **extra,
        )  # fmt: skip

    def train(
        self,
        *,
        begin: int = 0,
        end: int = 150,
        commit_every: int = 60,
        crash: bool = False,
        speed: float = 1.0,
        input_wait: float = 0.02,
        status: str = "completed",
        extra: dict[str, Any] | None = None,
    ) -> None:
        assert self.run_id is not None
        folder = self.workspace.run(self.run_id)
        number = len(list((folder / "ledger").glob("*.jsonl"))) + 1 if folder.exists() else 1
        spawned = {"run_id": self.run_id, "invocation_id": self.name, **self.spawned}
        fake = FakeAttempt(folder / "ledger" / f"{number:04d}.jsonl", "train", at=self.now, **spawned)
        fake.boot(2.4)
        if begin:
            fake.work("checkpoint_restore", 0.8)
            fake.write("event", name="restored", step=begin)
        fake.work("compile", 9.0)
        if begin == 0:
            self._evaluate(fake, folder, 0)
        self._count(fake, begin)
        for step in range(begin + 1, end + 1):
            fake.work("input_wait", input_wait)
            fake.work("step", STEP_SECONDS / speed)
            if step % 5 == 0 or step == end:
                self._count(fake, step)
                self._log(fake, folder, step, number, speed)
            if step % commit_every == 0 or (step == end and not crash):
                fake.work("checkpoint_save", 0.4)
                self._count(fake, step)
                fake.write("checkpoint", step=step)
        self._sample(folder, number, fake)
        if crash:
            fake.now += 0.4
            fake.end(137, "killed")
            self.done(fake, "train", "crashed", {}, "killed (SIGKILL)")
            return
        self._evaluate(fake, folder, end)
        fake.work("export", 1.1)
        fake.end(0, "completed")
        write_json(folder / "samples.json", [{"prompt": "def ", "text": "def get(self, name):\n    return self._name"}])
        sums = {"rows": end * BATCH, "sum": 24_956_160, "hash": "9f31c2d4a5b6e7f8"}
        epochs = [{"epoch": 0, "expected": sums, "seen": sums, "skipped": {"rows": 0, "sum": 0, "hash": "0" * 16}}]
        receipt = {"rows": 8_170, "cursor": end * BATCH, "balanced": True, "epochs": [{**epochs[0], "balanced": True}]}
        write_json(folder / "receipt.json", receipt)
        summary = {
            "parameters": 4_264_960,
            "flops_per_token": 27_000_000,
            "architecture": "GPT2LMHeadModel",
            "frozen": {
                "precision": "bfloat16",
                "precision_reason": "this CPU has AMX",
                "xla": "off",
                "micro_batch_size": 32,
            },
            "devices": {"kind": "cpu", "count": 1, "models": ["CPU"]},
            "compile_seconds": 8.9,
            "checkpoint_stall_seconds": [0.04, 0.05],
            "checkpoint_save_seconds": 0.4,
            "peak_memory_bytes": 1_930_000_000,
            **(extra or {}),
        }
        write_json(folder / "summary.json", summary)
        outputs = {
            "run_id": self.run_id,
            "step": end,
            "cursor": end * BATCH,
            "eval_loss": loss_at(end),
            "eval_loss_first": loss_at(0),
            "train_loss": loss_at(end),
            "nonpadding_tokens": end * STEP_NONPADDING,
            "processed_tokens": end * STEP_TOKENS,
        }
        self.done(fake, "train", status, outputs)

    def save(self, outcome: str = "running") -> dict[str, Any]:
        self.record["outcome"] = outcome
        self.record["ended"] = None if outcome == "running" else self.now
        write_json(self.workspace.invocation(self.name) / "invocation.json", self.record)
        if self.run_id is not None:
            run = {
                "id": self.run_id,
                "pipeline": "demo",
                "status": "open",
                "snapshot": "77c1d2e3f4a5b6c7",
                "identity": {},
            }
            write_json(self.workspace.run(self.run_id) / "run.json", run)
        return self.record

    def report_ledger(self) -> str:
        """The ledger of a report stage that has just begun."""
        path = self.workspace.invocation(self.name) / "ledger" / "09-report.jsonl"
        fake = FakeAttempt(path, "report", at=self.now, invocation_id=self.name, **self.spawned)
        fake.boot(0.5)
        return self.workspace.relative(path)

    def _count(self, fake: FakeAttempt, step: int) -> None:
        fake.write(
            "steps",
            step=step,
            cursor=step * BATCH,
            processed_tokens=step * STEP_TOKENS,
            nonpadding_tokens=step * STEP_NONPADDING,
        )

    def _log(self, fake: FakeAttempt, folder: Path, step: int, attempt: int, speed: float) -> None:
        wobble = 0.06 * math.sin(step * 1.7)
        row = {
            "step": step,
            "cursor": step * BATCH,
            "time": fake.now,
            "loss": loss_at(step) - 0.05 + wobble,
            "attempt": attempt,
            "tokens_per_second": speed * STEP_NONPADDING / STEP_SECONDS * (1 + wobble / 3),
        }
        append(folder / "metrics.jsonl", row)

    def _sample(self, folder: Path, attempt: int, fake: FakeAttempt) -> None:
        """What the utilisation sampler leaves: a row a second."""
        (folder / "utilisation").mkdir(parents=True, exist_ok=True)
        path = folder / "utilisation" / f"{attempt:04d}-000.parquet"
        seconds = f"SELECT {self.now} + i AS time, i FROM range(CAST({fake.now - self.now} AS BIGINT)) AS seconds(i)"
        columns = (
            "time, CASE WHEN i < 12 THEN 55.0 ELSE 92.0 + i % 5 END AS cpu_pct, 38.0 + i / 20.0 AS memory_used_pct"
        )
        duckdb.sql(f"COPY (SELECT {columns}, 7 AS process_threads FROM ({seconds})) TO '{path}' (FORMAT parquet)")

    def _evaluate(self, fake: FakeAttempt, folder: Path, step: int) -> None:
        fake.work("evaluate", 2.5)
        loss = loss_at(step)
        row = {
            "step": step,
            "loss": loss,
            "bits_per_byte": loss / math.log(2) / 3.41,
            "perplexity": math.exp(loss),
            "tokens": 64_000,
            "rows": 256,
            "time": fake.now,
        }
        append(folder / "evaluation.jsonl", row)


def loss_at(step: int) -> float:
    return 4.1 + 4.25 * math.exp(-step / 45)


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as sink:
        sink.write(json.dumps(row) + "\n")
