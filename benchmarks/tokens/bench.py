"""`make bench-tokens`: the token cache beside `datasets` + `transformers` and datatrove, and the reading of rows.

    python -m benchmarks.tokens.bench FOLDER [--only PART ...] [--runs N] [--peer-runs N]

FOLDER keeps corpora, the peers' virtual environments and results; a part that is run again replaces its own results.
Writes docs/benchmarks/tokens.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.tokens.corpora import make
from benchmarks.tokens.measure import REPOSITORY, Measure, Prepare, of_runs, peak_pss_mib, seconds

HERE = Path(__file__).parent
OUT = REPOSITORY / "docs" / "benchmarks" / "tokens.json"
PEERS = {"datasets": "datasets + transformers", "datatrove": "datatrove"}


class Bench:
    def __init__(self, folder: Path, runs: int, peer_runs: int) -> None:
        self.folder, self.runs, self.peer_runs = folder, runs, peer_runs
        self.corpora = folder / "corpora"
        self.tokenizer = self.corpora / "gpt2"

    def set_up(self) -> None:
        make(self.corpora)
        for peer in PEERS:
            python = self.folder / f"peers-{peer}" / "bin" / "python"
            if not python.exists():
                subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
                requirements = str(HERE / f"requirements-{peer}.txt")
                subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", requirements], check=True)

    def peer(self, name: str, corpus: Path) -> list[str]:
        out = self.folder / "out" / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        python = str(self.folder / f"peers-{name}" / "bin" / "python")
        return [python, str(HERE / f"peer_{name}.py"), str(corpus), str(self.tokenizer), str(out)]

    def prepare(self, corpus: Path, name: str = "workspace") -> Prepare:
        return Prepare(self.folder / "out" / name, corpus, self.tokenizer)

    def cold(self, corpus_name: str, measure: str) -> list[Measure]:
        """Whole processes, one after the other in turns, on a warm page cache."""
        corpus = self.corpora / corpus_name
        ours: list[float] = []
        peers: dict[str, list[float]] = {PEERS[name]: [] for name in PEERS}
        for turn in range(max(self.runs, self.peer_runs)):
            if turn < self.runs:
                prepare = self.prepare(corpus)
                prepare.clear()
                ours.append(seconds(prepare.command()))
            if turn < self.peer_runs:
                for name in PEERS:
                    peers[PEERS[name]].append(seconds(self.peer(name, corpus)))
        return [of_runs(measure, "seconds", ours, peers)]

    def prepare_cold(self) -> list[Measure]:
        return self.cold("english", "prepare_cold")

    def prepare_cold_zh(self) -> list[Measure]:
        return self.cold("chinese", "prepare_cold_zh")

    def changes(self) -> list[Measure]:
        """Nothing changed; 1 % of the documents appended, changed in one run of a file, or changed here and there."""
        corpus = self.folder / "out" / "changing"
        found: dict[str, list[float]] = {name: [] for name in ("unchanged", "appended", "contiguous", "scattered")}
        built: dict[str, int] = {}
        for _ in range(self.runs):
            shutil.rmtree(corpus, ignore_errors=True)
            shutil.copytree(self.corpora / "english", corpus)
            prepare = self.prepare(corpus)
            prepare.clear()
            seconds(prepare.command())
            for name in found:
                if name != "unchanged":
                    CHANGES[name](corpus)
                found[name].append(seconds(prepare.command()))
                built[name] = prepare.outputs()["built_shards"]
                if name != "unchanged":  # back to where it was, and remembered
                    shutil.copytree(self.corpora / "english", corpus, dirs_exist_ok=True)
                    (corpus / "part-8.jsonl.gz").unlink(missing_ok=True)
                    seconds(prepare.command())
        print("shards built:", built)
        return [
            of_runs("prepare_unchanged", "seconds", found["unchanged"], {}),
            of_runs("prepare_1pct", "seconds", found["contiguous"], {}),
            of_runs("prepare_1pct_appended", "seconds", found["appended"], {}),
            of_runs("prepare_1pct_scattered", "seconds", found["scattered"], {}),
        ]

    def peak_memory(self) -> list[Measure]:
        corpus = self.corpora / "english"
        ours = []
        for _ in range(self.runs):
            prepare = self.prepare(corpus)
            prepare.clear()
            ours.append(peak_pss_mib(prepare.command()))
        peers = {PEERS[name]: [peak_pss_mib(self.peer(name, corpus))] for name in PEERS}
        return [of_runs("peak_memory", "MiB PSS", ours, peers)]

    def peak_memory_x10(self) -> list[Measure]:
        prepare = self.prepare(self.corpora / "english-x10")
        prepare.clear()
        measure = of_runs("peak_memory_x10", "MiB PSS", [peak_pss_mib(prepare.command())], {})
        prepare.clear()
        return [measure]

    def padding(self) -> list[Measure]:
        """Share of padding in train rows of 512, by way of packing and size of group; no token is lost in any."""
        found = []
        ways = [("best_fit", 5000), ("best_fit", 1250), ("best_fit", 2500), ("best_fit", 10_000), ("best_fit", 10**6)]
        for packing, group in [*ways, ("concat", 5000), ("one_per_row", 5000)]:
            prepare = Prepare(
                self.folder / "out" / "padding",
                self.corpora / "english",
                self.tokenizer,
                packing=packing,
                group_documents=group,
            )
            prepare.clear()
            seconds(prepare.command())
            manifest = json.loads(
                (prepare.folder / "snapshots" / prepare.outputs()["snapshot"] / "manifest.json").read_bytes()
            )
            name = "padding_512" if (packing, group) == ("best_fit", 5000) else f"padding_512_{packing}_{group}"
            for split in ("train", "eval") if name == "padding_512" else ("train",):
                counts = manifest[split]
                share = 100 * counts["padding_tokens"] / (counts["padding_tokens"] + counts["tokens"])
                found.append(Measure(name if split == "train" else f"{name}_eval", "% of positions", share))
            split_share = 100 * manifest["train"]["split_documents"] / manifest["train"]["documents"]
            found.append(Measure(f"{name}_documents_split", "% of documents", split_share))
            prepare.clear()
        return found

    def rows(self) -> list[Measure]:
        prepare = self.prepare(self.corpora / "english")
        prepare.clear()
        seconds(prepare.command())
        out = self.folder / "rows.json"
        command = [sys.executable, "-m", "benchmarks.tokens.rows", str(prepare.folder), prepare.outputs()["snapshot"]]
        subprocess.run([*command, str(self.runs), str(out)], check=True, cwd=REPOSITORY)
        rates = json.loads(out.read_bytes())
        peers = {name: rates[name] for name in ("tf.data: parse, batch", "tf.data: batch, parse")}
        options = {"lower_is_better": False}
        return [
            of_runs("rows_raw", "rows a second", rates["records"], {}, **options),
            of_runs("rows_arrays", "rows a second", rates["rows"], {}, **options),
            of_runs("rows_dataset", "rows a second", rates["train_batches"], peers, **options),
        ]


def _rewrite(path: Path, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]) -> None:
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in change(records))
    path.write_bytes(gzip.compress(lines.encode(), compresslevel=4))


def _changed(record: dict[str, str]) -> dict[str, str]:
    return {**record, "text": record["text"] + " (revised)"}


def _append(corpus: Path) -> None:
    texts = gzip.decompress((corpus / "part-0.jsonl.gz").read_bytes()).splitlines()[:1262]
    records = [_changed(json.loads(line)) for line in texts]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (corpus / "part-8.jsonl.gz").write_bytes(gzip.compress(lines.encode(), compresslevel=4))


def _contiguous(corpus: Path) -> None:
    def change(records: list[dict[str, str]]) -> list[dict[str, str]]:
        return [*records[:5000], *map(_changed, records[5000:6262]), *records[6262:]]

    _rewrite(corpus / "part-3.jsonl.gz", change)


def _scattered(corpus: Path) -> None:
    for path in corpus.glob("*.gz"):
        _rewrite(path, lambda records: [_changed(r) if n % 100 == 7 else r for n, r in enumerate(records)])


CHANGES = {"appended": _append, "contiguous": _contiguous, "scattered": _scattered}
PARTS = {
    "prepare_cold": Bench.prepare_cold,
    "changes": Bench.changes,
    "peak_memory": Bench.peak_memory,
    "peak_memory_x10": Bench.peak_memory_x10,
    "padding": Bench.padding,
    "rows": Bench.rows,
    "prepare_cold_zh": Bench.prepare_cold_zh,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokens.bench")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=[*PARTS, "set_up"], default=list(PARTS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer-runs", type=int, default=3)
    arguments = parser.parse_args()
    bench = Bench(arguments.folder.resolve(), arguments.runs, arguments.peer_runs)
    bench.set_up()
    results: dict[str, dict[str, object]] = {}
    if OUT.exists():
        results = {item["measure"]: item for item in json.loads(OUT.read_bytes())}
    for part in arguments.only:
        for measure in PARTS[part](bench) if part != "set_up" else []:
            results[measure.measure] = measure.plain()
            print(json.dumps(measure.plain(), ensure_ascii=False), flush=True)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(list(results.values()), indent=2, ensure_ascii=False) + "\n")
    shutil.rmtree(bench.folder / "out", ignore_errors=True)


if __name__ == "__main__":
    main()
