"""The main job through the command line: a small corpus, every artifact checked against sums made from the input."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tests.integration.commands import ROOT, start, tokenmill, write_pipelines
from tokenmill.cost.ledger import read_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = 3000
TRAINING = {
    "length": {"steps": STEPS},
    "global_batch_size": 4,
    "profile_steps": 0,
    "precision": "float32",
    "checkpoint": {"every_seconds": 0.2},
    "log_every_seconds": 0.5,
    "sample_prompts": ["the cat"],
    "sample_tokens": 5,
}


def write_corpus(folder: Path) -> list[str]:
    """Sixty documents of simple sentences, in three folders; also one copy, one empty file and one that is no text."""
    words = random.Random(7)
    nouns, verbs = ["cat", "dog", "bird", "child"], ["sees", "likes", "hears", "finds"]
    documents = []
    for number in range(60):
        lines = (
            f"the {words.choice(nouns)} {words.choice(verbs)} the {words.choice(nouns)}." for _ in range(5 + number % 9)
        )
        documents.append(f"story {number}\n" + "\n".join(lines))
        path = folder / "notes" / f"part{number % 3}" / f"{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(documents[-1])
    (folder / "notes" / "zz-copy.txt").write_text(documents[0])
    (folder / "notes" / "zz-empty.txt").write_text("")
    (folder / "notes" / "zz-broken.txt").write_bytes(b"\xff\xfe\xfd")
    return documents


def records(path: Path) -> int:
    """The number of records in a TFRecord file, from its framing alone."""
    data, position, count = path.read_bytes(), 0, 0
    while position < len(data):
        position += 8 + 4 + struct.unpack_from("<Q", data, position)[0] + 4
        count += 1
    assert position == len(data)
    return count


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], subprocess.CompletedProcess[str]]:
    """A folder in which the pipeline `small` has run to its end, once."""
    folder = tmp_path_factory.mktemp("whole")
    documents = write_corpus(folder)
    write_pipelines(folder, training=TRAINING, checks={"max_refused_pct": 50})
    done = tokenmill(folder, "run", "small")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, documents, done


def test_the_ending_says_what_it_cost_what_the_model_writes_and_where_everything_lies(trained: Any) -> None:
    folder, _, done = trained
    assert "Traceback" not in done.stdout + done.stderr
    report = read(only(folder, "workspace/runs/*/report/report.json"))
    assert report["first_line"] in done.stdout
    assert "the cat" in done.stdout
    assert "evaluation loss" in done.stdout
    assert "unigram entropy" in done.stdout
    assert str(only(folder, "workspace/runs/*/report/report.html")) in done.stdout


def test_documents_and_tokens_of_the_snapshot_are_those_of_the_input(trained: Any) -> None:
    folder, documents, _ = trained
    workspace = folder / "workspace"
    manifest = read(only(workspace, "snapshots/*/manifest.json"))
    assert manifest["documents_in"] == 63
    assert manifest["documents_kept"] == 60
    assert manifest["duplicates"] == 1
    assert manifest["refused"] == 2
    tokenizer = Tokenizer.from_file(str(only(workspace, "tokenizers/*/tokenizer.json")))
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) + 1 for text in documents)
    assert manifest["train"]["tokens"] + manifest["eval"]["tokens"] == tokens
    tables = [pq.read_table(workspace / "shards" / shard["key"] / "documents.parquet") for shard in manifest["shards"]]
    assert sum(sum(table["tokens"].to_pylist()) for table in tables) == tokens
    for split in ("train", "eval"):
        files = [workspace / "shards" / shard["key"] / f"{split}.tfrecord" for shard in manifest["shards"]]
        assert sum(records(path) for path in files if path.exists()) == manifest[split]["rows"]
        slots = manifest[split]["rows"] * manifest["sequence_length"]
        assert manifest[split]["tokens"] + manifest[split]["padding_tokens"] == slots


def test_training_did_the_steps_that_were_asked_for_and_learned(trained: Any) -> None:
    folder, _, _ = trained
    run = only(folder, "workspace/runs/*")
    assert read(run / "run.json")["status"] == "completed"
    invocation = read(only(folder, "workspace/invocations/*/invocation.json"))
    assert [stage["stage"] for stage in invocation["stages"]] == ["prepare", "validate", "train", "report"]
    outputs = {stage["stage"]: stage["outputs"] for stage in invocation["stages"]}
    assert outputs["train"]["step"] == STEPS
    assert outputs["train"]["cursor"] == STEPS * 4
    assert outputs["train"]["processed_tokens"] == STEPS * 4 * 32
    assert outputs["train"]["eval_loss"] < outputs["validate"]["unigram_entropy_nats"]
    assert outputs["validate"]["verdict"] in ("pass", "warn")
    steps = [record for record in read_records(run / "ledger" / "0001.jsonl") if record["kind"] == "steps"]
    assert steps[-1]["nonpadding_tokens"] == outputs["train"]["nonpadding_tokens"]
    assert (run / "model" / "model.safetensors").stat().st_size > 0


def test_the_bill_is_the_ledgers_seconds_at_the_price(trained: Any) -> None:
    folder, _, _ = trained
    workspace = folder / "workspace"
    seconds = 0.0
    for path in [*workspace.glob("invocations/*/ledger/*.jsonl"), *workspace.glob("runs/*/ledger/*.jsonl")]:
        lines = list(read_records(path))
        if lines[0]["kind"] == "spawned" and lines[0]["stage"] != "report":
            seconds += lines[-1]["monotonic"] - lines[0]["monotonic"]
    report = read(only(workspace, "runs/*/report/report.json"))
    billed = sum(float(attempt["billed_seconds"]) for attempt in report["attempts"] if attempt["stage"] != "report")
    assert billed == pytest.approx(seconds, abs=0.5)


def test_a_healthy_run_raises_no_alarm_and_is_watched(trained: Any) -> None:
    folder, *_ = trained
    report = read(only(folder, "workspace/runs/*/report/report.json"))
    assert report["alarms"] == []
    assert report["utilisation"]
    assert {check["status"] for check in read(only(folder, "workspace/runs/*/preflight.json"))} <= {"ok", "skipped"}


def test_the_explore_notebook_runs_over_it(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, *_ = trained
    monkeypatch.setenv("TOKENMILL_WORKSPACE", str(folder / "workspace"))
    monkeypatch.setenv("TOKENMILL_SENTENCE", "the cat sees the dog")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plots = executed_plots(ROOT / "docs" / "explore.ipynb")
    assert len(plots) == 4
    assert all(plot.startswith(b"\x89PNG") and len(plot) > 5000 for plot in plots)


def executed_plots(notebook: Path) -> list[bytes]:
    """Run every cell in a kernel of its own; an error in one is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's machinery
        import nbformat
        from nbclient import NotebookClient

        book = nbformat.read(notebook, as_version=4)
        NotebookClient(book, timeout=300, kernel_name="python3").execute()
    outputs = (output for cell in book.cells for output in cell.get("outputs", []))
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def test_a_second_start_has_nothing_to_do_and_says_so(trained: Any) -> None:
    folder, _, _ = trained
    before = only(folder, "workspace/runs/*/run.json").read_bytes()
    done = tokenmill(folder, "run", "small")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing new" in done.stdout
    assert "the cat" in done.stdout
    assert only(folder, "workspace/runs/*/run.json").read_bytes() == before
    listed = tokenmill(folder, "ls").stdout
    assert "completed" in listed
    assert only(folder, "workspace/runs/*").name in listed
    assert (
        read(only(folder, "workspace/runs/*/report/report.json"))["first_line"]
        in tokenmill(folder, "show", "small").stdout
    )


def test_forgetting_a_document_names_who_saw_it_and_rebuilds_without_it(trained: Any, tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "workspace", tmp_path / "workspace")
    (tmp_path / "notes").symlink_to(trained[0] / "notes")
    write_pipelines(tmp_path, training=TRAINING, checks={"max_refused_pct": 50})
    run, snapshot = only(tmp_path, "workspace/runs/*"), only(tmp_path, "workspace/snapshots/*")
    wanted = pq.read_table(snapshot / "sources.parquet")["digest"][3].as_py().hex()
    for _ in range(2):
        assert "small/1 is the model of run" in tokenmill(tmp_path, "promote", "small").stdout
    said = tokenmill(tmp_path, "forget", wanted).stdout
    assert f"snapshot {snapshot.name} holds 1 of them in 1 shards" in said
    assert f"run {run.name} of small (completed) trained on snapshot {snapshot.name}" in said
    assert f"model small/1 came of run {run.name}" in said
    assert snapshot.exists()

    record = read(run / "run.json")
    (run / "run.json").write_text(json.dumps(record | {"status": "open"}))
    refused = tokenmill(tmp_path, "forget", wanted, "--yes")
    assert refused.returncode == 2
    assert f"run {run.name} is not finished and needs its snapshot" in refused.stdout + refused.stderr
    assert snapshot.exists()

    (run / "run.json").write_text(json.dumps(record))
    done = tokenmill(tmp_path, "forget", wanted, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    rebuilt = only(tmp_path, "workspace/snapshots/*")
    assert rebuilt != snapshot
    manifest = read(rebuilt / "manifest.json")
    assert (manifest["documents_kept"], manifest["refused"]) == (59, 3)
    tables = [pq.read_table(path) for path in tmp_path.glob("workspace/shards/*/documents.parquet")]
    assert all(bytes.fromhex(wanted) not in table["digest"].to_pylist() for table in tables)
    assert "no snapshot holds such a document" in tokenmill(tmp_path, "forget", wanted).stdout


def test_ctrl_c_in_training_and_a_second_start_give_the_same_weights(trained: Any, tmp_path: Path) -> None:
    whole = trained[0]
    (tmp_path / "notes").symlink_to(whole / "notes")
    write_pipelines(tmp_path, training=TRAINING, checks={"max_refused_pct": 50})
    process = start(tmp_path, "run", "small")
    wait_for(process, tmp_path, "workspace/runs/*/checkpoints/step-*/COMMIT")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, out + err
    assert "start again to go on" in out
    assert "Traceback" not in out + err
    run = only(tmp_path, "workspace/runs/*")
    assert read(run / "run.json")["status"] == "open"
    assert 0 < read(run / "run.json")["committed_step"] < STEPS
    assert (run / "report" / "report.html").exists()
    done = tokenmill(tmp_path, "run", "small")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on with run {run.name}" in done.stdout
    assert read(run / "run.json")["attempts"] == 2
    weights = [only(folder, "workspace/runs/*/model/model.safetensors").read_bytes() for folder in (whole, tmp_path)]
    assert weights[0] == weights[1]


def wait_for(process: subprocess.Popen[str], folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 300
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.05)
