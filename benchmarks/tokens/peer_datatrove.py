"""The same job with datatrove: read, tokenise, end each document, write token files (without its shuffle)."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    corpus, tokenizer_folder, out = map(Path, sys.argv[1:4])
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(corpus), glob_pattern="*.jsonl.gz", compression="gzip"),
            DocumentTokenizer(
                str(out / "tokens"),
                tokenizer_name_or_path=str(tokenizer_folder / "tokenizer.json"),
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=2,
        workers=2,
        logging_dir=str(out / "logs"),
    ).run()


if __name__ == "__main__":
    main()
