"""One group of documents → `shards/<key>/`: train.tfrecord, eval.tfrecord, documents.parquet, shard.json.

`build_shard` runs in a worker: text → tokens → packed records → two files. `publish_shard` runs in the owner: it adds
the table of documents and lets the folder appear whole.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.canonical import canonical_json
from tokenmill.tokens.encode import Encoder
from tokenmill.tokens.pack import PackingMode, pack
from tokenmill.tokens.records import RecordLayout, packed_records
from tokenmill.tokens.scratch import SHARD_MARKER
from tokenmill.tokens.tokenizer import load_tokenizer

SPLITS = ("train", "eval")


@dataclass(frozen=True)
class ShardOptions:
    """All besides its documents that decides a shard's bytes."""

    tokenizer: str
    vocab_size: int
    sequence_length: int
    packing: PackingMode
    format_version: int


@dataclass(frozen=True)
class SpoolPart:
    """Documents of one spool. Legend: D documents."""

    spool: str
    offsets_D: npt.NDArray[np.int64]
    bytes_D: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """The documents of a shard in canonical order, without their text. Legend: D documents."""

    digests_D: npt.NDArray[np.void]
    characters_D: npt.NDArray[np.int64]
    bytes_D: npt.NDArray[np.int64]
    held_out_D: npt.NDArray[np.bool_]

    def key(self, options: ShardOptions) -> str:
        digest = hashlib.sha256(canonical_json(vars(options)))
        digest.update(self.digests_D.tobytes())
        digest.update(np.packbits(self.held_out_D).tobytes())
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class BuiltShard:
    """What a worker made of a group, before it is published."""

    folder: str
    splits: dict[str, dict[str, Any]]
    """Fields of `tokenmill.tokens.manifest.ShardSplit`."""
    tokens_D: npt.NDArray[np.int64] = field(repr=False)
    rows_D: npt.NDArray[np.int64] = field(repr=False)
    """Rows that hold a part of the document."""
    note: str = ""


def build_shard(
    group: Group, parts: list[SpoolPart], options: ShardOptions, tokenizer_folder: str, folder: str
) -> BuiltShard:
    """Encode, pack and frame a group into the existing `folder`."""
    texts = [text for part in parts for text in _texts(part)]
    encoded = _encoder(tokenizer_folder).encode(texts, group.characters_D)
    layout = RecordLayout(options.sequence_length, options.vocab_size)
    encoded_D = np.fromiter(map(len, encoded.tokens), np.int64, len(texts))
    rows_D = np.zeros(len(texts), np.int64)
    splits = {}
    for split in SPLITS:
        chosen_D = np.flatnonzero(group.held_out_D if split == "eval" else ~group.held_out_D)
        length_D = encoded_D[chosen_D]
        packing = pack(length_D, options.sequence_length, options.packing, fill=split == "train")
        records = packed_records(layout, packing, [encoded.tokens[d] for d in chosen_D.tolist()])
        stored = int(np.count_nonzero(layout.view(records, "segment_ids")))
        if stored != int(length_D.sum()):
            raise RuntimeError(f"{stored} tokens in records, {int(length_D.sum())} encoded: packing lost some")
        data = records.data
        Path(folder, f"{split}.tfrecord").write_bytes(data)
        pairs = np.unique(packing.document_P * max(packing.rows, 1) + packing.row_P) // max(packing.rows, 1)
        rows_D[chosen_D] = np.bincount(pairs, minlength=len(chosen_D))
        splits[split] = {
            "documents": len(chosen_D),
            "rows": packing.rows,
            "tokens": stored,
            "split_documents": packing.split_documents(),
            "sha256": hashlib.sha256(data).hexdigest(),
            "file_bytes": data.nbytes,
        }
    return BuiltShard(folder, splits, encoded_D, rows_D, encoded.note)


def _texts(part: SpoolPart) -> list[bytes]:
    with open(part.spool, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as spool:  # noqa: PTH123
        places = zip(part.offsets_D.tolist(), part.bytes_D.tolist(), strict=True)
        return [spool[at : at + size] for at, size in places]


@lru_cache(maxsize=2)
def _encoder(tokenizer_folder: str) -> Encoder:
    return Encoder(load_tokenizer(Path(tokenizer_folder)))


def publish_shard(final: Path, group: Group, built: BuiltShard) -> dict[str, Any]:
    """Let the shard appear at `final`; what its marker says (`tokenmill.tokens.manifest.Shard`)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tokenmill.tokens.arrays import arrow_array
    from tokenmill.workspace import publish_folder

    columns = [
        ("digest", group.digests_D),
        ("text_bytes", group.bytes_D),
        ("characters", group.characters_D),
        ("tokens", built.tokens_D),
        ("rows", built.rows_D),
        ("held_out", group.held_out_D),
    ]
    digest = hashlib.sha256()
    for name, values in columns:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    table = pa.table({name: arrow_array(values) for name, values in columns})
    shard = {
        "key": final.name,
        "documents": len(group.digests_D),
        "text_bytes": int(group.bytes_D.sum()),
        "characters": int(group.characters_D.sum()),
        **built.splits,
        "documents_digest": digest.hexdigest(),
    }
    with publish_folder(final) as folder:
        for split in SPLITS:
            Path(built.folder, f"{split}.tfrecord").rename(folder / f"{split}.tfrecord")
        pq.write_table(table, folder / "documents.parquet", compression="zstd", use_dictionary=False)
        (folder / SHARD_MARKER).write_bytes(canonical_json(shard) + b"\n")
    return shard
