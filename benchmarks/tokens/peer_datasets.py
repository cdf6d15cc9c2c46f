"""The same job with `datasets` and `transformers`: read, tokenise, end each document, pack into rows of 512, save."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Any

LENGTH = 512


def main() -> None:
    corpus, tokenizer_folder, out = map(Path, sys.argv[1:4])
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    end = tokenizer.eos_token_id

    def tokenise(batch: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [[*ids, end] for ids in tokenizer(batch["text"])["input_ids"]]}

    def group(batch: dict[str, Any]) -> dict[str, Any]:
        joined = list(chain(*batch["input_ids"]))
        return {"input_ids": [joined[at : at + LENGTH] for at in range(0, len(joined) // LENGTH * LENGTH, LENGTH)]}

    files = [str(path) for path in sorted(corpus.glob("*.jsonl.gz"))]
    data = load_dataset("json", data_files=files, split="train", cache_dir=str(out / "cache"))
    data = data.map(tokenise, batched=True, num_proc=2, remove_columns=data.column_names)
    data = data.map(group, batched=True, num_proc=2)
    data.save_to_disk(str(out / "rows"))


if __name__ == "__main__":  # datasets 5 spawns its workers
    main()
