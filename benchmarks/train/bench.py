"""`make bench-train`: tokens a second and memory of training beside Keras `fit`, PyTorch and the HF Trainer.

    python -m benchmarks.train.bench FOLDER [--only PART ...] [--generations N]

A generation starts every trainer once, each in its own process; they warm up and then take turns of a few updates, so
that a machine whose speed drifts treats all alike. Figures are medians over generations, ratios are taken within a
generation. FOLDER keeps data, the peers' environment and every generation's figures: a second call adds to them, until
the source of the compiled update or of a trainer changes. Writes docs/benchmarks/train.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.tokens.measure import REPOSITORY
from benchmarks.train import data
from benchmarks.train.trainers import Trainer, take_turns, torch_python
from benchmarks.train.turns import BATCH

HERE = Path(__file__).parent
OUT = REPOSITORY / "docs" / "benchmarks" / "train.json"
ROUNDS, UPDATES = 3, 2
UPDATE = ["model", "functions", "objective", "update", "loop", "batches"]
TRAINERS = ["turns", "ours", "products", "peer_keras", "peer_torch", "peer_trainer"]
OURS = ["ours float32", "ours bf16", "ours float32 fuse", "ours bf16 fuse"]
KERAS = ["Keras fit bf16", "Keras fit float32"]
TRAINER = ["HF Trainer bf16"]
COMPILED = ["PyTorch compiled bf16", "PyTorch compiled float32"]
PLAIN = ["PyTorch bf16"]
PRODUCTS = ["products float32", "products bf16"]
PADDED = ["ours float32, packed 512", "Keras fit float32, one document a row of 512"]

Generation = dict[str, dict[str, float]]
"""By trainer: tokens_per_second, peak_mib."""


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        data.make(self.data)
        self.torch = torch_python(folder)
        (folder / "logs").mkdir(exist_ok=True)

    def generation(self, names: list[str]) -> Generation:
        trainers = [self.trainer(name) for name in names]
        take_turns(trainers, ROUNDS, UPDATES)
        return {t.name: {"tokens_per_second": t.tokens_per_second, "peak_mib": t.peak_bytes / 2**20} for t in trainers}

    def trainer(self, name: str) -> Trainer:
        kind = name.split(",")[0]
        layout = "packed-512" if "packed" in name else "padded-512" if "one document" in name else "packed-256"
        arrays = np.load(self.data / f"{layout}.npz")
        tokens = BATCH * arrays["segment_ids_BS"].shape[1] * float(np.mean(arrays["segment_ids_BS"] > 0))
        command = self.command(kind, self.data / layout)
        return Trainer(name, command, tokens, self.folder / "logs" / f"{name.replace(' ', '-')}.log")

    def command(self, kind: str, rows: Path) -> list[str]:
        precision = "float32" if "float32" in kind else "bf16"
        if kind.startswith("ours"):
            settings = ["fuse" if "fuse" in kind else "off", precision.replace("bf16", "bfloat16")]
            return [sys.executable, "-m", "benchmarks.train.ours", f"{rows}.npz", *settings]
        if kind.startswith("products"):
            return [sys.executable, "-m", "benchmarks.train.products", "256", precision.replace("bf16", "bfloat16")]
        if kind.startswith("Keras"):
            return [sys.executable, str(HERE / "peer_keras.py"), f"{rows}.npy", precision]
        if kind.startswith("HF"):
            return [self.torch, str(HERE / "peer_trainer.py"), f"{rows}.npy", precision]
        setting = "compile" if "compiled" in kind else "plain"
        return [self.torch, str(HERE / "peer_torch.py"), f"{rows}.npy", setting, precision]


PARTS = {
    "float32": ["ours float32", *KERAS[1:], *COMPILED[1:], *PRODUCTS[:1]],
    "bf16": ["ours float32", "ours bf16", KERAS[0], *TRAINER, COMPILED[0], *PLAIN, PRODUCTS[1]],
    "fuse": OURS,
    "padded": PADDED,
}


def summarise(parts: dict[str, list[Generation]]) -> list[dict[str, Any]]:
    found = []

    def compare(measure: str, ours: str, peers: list[str], key: str = "tokens_per_second") -> None:
        """Against the best of the peers, each beside our runs of the same generation."""
        lower = key == "peak_mib"
        unit = "MiB" if lower else "non-padding tokens a second"
        ratios, values = {}, {}
        own: list[float] = []
        for peer in peers:
            both = [g for part in parts.values() for g in part if ours in g and peer in g]
            if not both:
                return
            own += [g[ours][key] for g in both if g[ours][key] not in own]
            values[peer] = median(g[peer][key] for g in both)
            ratios[peer] = sorted(g[peer][key] / g[ours][key] if lower else g[ours][key] / g[peer][key] for g in both)
        best = min(ratios, key=lambda peer: median(ratios[peer]))
        found.append(
            {
                "measure": measure,
                "unit": f"{unit} ({ours})",
                "ours": round(median(own), 1),
                "peers": {name: round(value, 1) for name, value in values.items()},
                "ratio": round(median(ratios[best]), 3),
                "ratio_spread": [round(ratios[best][0], 3), round(ratios[best][-1], 3)],
                "runs": len(ratios[best]),
                "spread": [round(min(own), 1), round(max(own), 1)],
            }
        )

    compare("tokens_vs_keras_fit", "ours float32", KERAS)
    compare("tokens_vs_hf_trainer", "ours float32", TRAINER)
    compare("tokens_vs_torch_compile", "ours float32", COMPILED)
    compare("tokens_vs_torch", "ours float32", PLAIN)
    compare("tokens_vs_keras_fit_bf16", "ours bf16", KERAS[:1])
    compare("tokens_vs_hf_trainer_bf16", "ours bf16", TRAINER)
    compare("tokens_vs_torch_compile_bf16", "ours bf16", COMPILED[:1])
    compare("tokens_fuse_float32", "ours float32 fuse", ["ours float32"])
    compare("tokens_fuse_bf16", "ours bf16 fuse", ["ours bf16"])
    compare("peak_memory", "ours float32", [*KERAS, *TRAINER, *COMPILED], "peak_mib")
    compare("peak_memory_bf16", "ours bf16", [KERAS[0], *TRAINER, COMPILED[0]], "peak_mib")
    compare("useful_tokens_vs_padded_keras", PADDED[0], PADDED[1:])
    for measure, ours, products in (
        ("mfu_pct", "ours float32", PRODUCTS[0]),
        ("mfu_pct_of_bf16_products", "ours bf16", PRODUCTS[1]),
    ):
        compare(measure, ours, [products])
        if found[-1]["measure"] == measure:
            found[-1]["unit"] = f"tokens a second; the ratio is MFU, the peer is the {products} of an update alone"
    return found


def fingerprint() -> str:
    update = [REPOSITORY / "tokenmill" / "training" / f"{name}.py" for name in UPDATE]
    paths = [*update, *sorted(path for path in HERE.glob("*.py") if path.stem in TRAINERS)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train.bench")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--generations", type=int, default=5)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    bench = Bench(folder)
    runs = folder / f"runs-{fingerprint()}.json"
    parts: dict[str, list[Generation]] = json.loads(runs.read_bytes()) if runs.exists() else {}
    for _ in range(arguments.generations):
        for part in arguments.only:
            parts.setdefault(part, []).append(bench.generation(PARTS[part]))
            print(json.dumps({part: parts[part][-1]}), flush=True)
            runs.write_text(json.dumps(parts))
            OUT.write_text(json.dumps(summarise(parts), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
