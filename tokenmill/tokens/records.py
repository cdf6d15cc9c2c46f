"""The record format: a packed row as a TFRecord of constant length, so that a file of rows is also an array.

    file   = record * rows
    record = uint64 length | uint32 masked CRC of it | data | uint32 masked CRC of data      (all little-endian)
    data   = tf.train.Example with four bytes features:
             tokens        uint16[S], or int32[S] where the vocabulary is larger than 65,536
             segment_ids   uint16[S]   1, 2, ... by document of the row; 0 is padding
             positions     uint16[S]   0, 1, ... restarting in each document
             loss_weights  uint8[S]    1 where this position predicts the next token of the same document

Record *i* begins at byte *i* x `record_bytes`, and each feature lies at a constant place in it. Any TensorFlow program
reads the same file with `tf.data.TFRecordDataset`, `tf.io.parse_single_example` and `tf.io.decode_raw`.
The framing is that of tensorflow/core/lib/io/record_writer.h; the masked CRC that of tensorflow/core/lib/hash/crc32c.h.
Legend: R rows, S sequence length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import google_crc32c
import numpy as np
import numpy.typing as npt

from tokenmill.tokens.pack import Packing

_LENGTH_FRAME = 12
_CRC_BYTES = 4
_MASK_DELTA = 0xA282EAD8
FEATURES = ("loss_weights", "positions", "segment_ids", "tokens")
"""In the order of the bytes: a serialised map has no order of its own, so it is fixed here to sorted names."""


@dataclass(frozen=True)
class RecordLayout:
    """Where everything lies in a record, for one sequence length and vocabulary."""

    sequence_length: int
    vocab_size: int

    @cached_property
    def dtypes(self) -> dict[str, np.dtype[np.generic]]:
        return {
            "tokens": np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<i4"),
            "segment_ids": np.dtype("<u2"),
            "positions": np.dtype("<u2"),
            "loss_weights": np.dtype("u1"),
        }

    @cached_property
    def _template(self) -> tuple[bytes, dict[str, int]]:
        """One record's bytes with empty features, and the byte at which each feature's value begins."""
        data = b""
        places = {}
        for name in FEATURES:
            value = bytes(self.sequence_length * self.dtypes[name].itemsize)
            # Example.features = 1; Features.feature = 1 (a map: key = 1, value = 2); Feature.bytes_list = 1; value = 1
            entry = _field(1, name.encode()) + _field(2, _field(1, _field(1, value)))
            data += _field(1, entry)
            places[name] = len(data) - len(value)
        example = _field(1, data)
        shift = _LENGTH_FRAME + len(example) - len(data)
        length = len(example).to_bytes(8, "little")
        frame = length + int(mask_crc(np.array([google_crc32c.value(length)], "<u4"))[0]).to_bytes(4, "little")
        return frame + example + bytes(_CRC_BYTES), {name: place + shift for name, place in places.items()}

    @property
    def record_bytes(self) -> int:
        return len(self._template[0])

    @property
    def feature_offsets(self) -> dict[str, int]:
        """Byte in the record at which each feature's array begins."""
        return self._template[1]

    def feature_slice(self, name: str) -> slice:
        start = self.feature_offsets[name]
        return slice(start, start + self.sequence_length * self.dtypes[name].itemsize)

    def blank_records(self, rows: int) -> npt.NDArray[np.uint8]:
        """uint8[R, record_bytes] of rows that are all padding, CRCs not yet set."""
        return np.tile(np.frombuffer(self._template[0], np.uint8), (rows, 1))

    def view(self, records: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.generic]:
        """The feature `name` of uint8[R, record_bytes] as its own dtype [R, S]; writes go through."""
        return records[:, self.feature_slice(name)].view(self.dtypes[name])

    def set_crcs(self, records: npt.NDArray[np.uint8]) -> None:
        records[:, -_CRC_BYTES:] = mask_crc(self._data_crcs(records))[:, None].view(np.uint8)

    def broken_rows(self, records: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Numbers of the rows whose frame or CRC is wrong."""
        frame = np.frombuffer(self._template[0][:_LENGTH_FRAME], np.uint8)
        wrong = (records[:, :_LENGTH_FRAME] != frame).any(axis=1)
        stored = np.ascontiguousarray(records[:, -_CRC_BYTES:]).view("<u4")[:, 0]
        return np.flatnonzero(wrong | (stored != mask_crc(self._data_crcs(records))))

    def _data_crcs(self, records: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        value, size, end = google_crc32c.value, self.record_bytes, self.record_bytes - _CRC_BYTES
        raw = records.tobytes()
        starts = range(0, len(raw), size)
        return np.fromiter((value(raw[at + _LENGTH_FRAME : at + end]) for at in starts), "<u4", len(records))


def packed_records(
    layout: RecordLayout, packing: Packing, documents: Sequence[npt.NDArray[np.integer]]
) -> npt.NDArray[np.uint8]:
    """The records of `packing`: uint8[R, record_bytes], CRCs set. `documents`: the tokens of each."""
    records = layout.blank_records(packing.rows)
    if packing.rows == 0:
        return records
    shape = (packing.rows, layout.sequence_length)
    # Pieces come by (row, column), so each feature is one run of pieces with a run of zeros where a row ends early.
    last_P = np.append(packing.row_P[1:] != packing.row_P[:-1], True)
    room_P = np.where(last_P, layout.sequence_length - packing.column_P - packing.length_P, 0)
    zeros = np.zeros(layout.sequence_length, np.uint32)
    counting = np.arange(layout.sequence_length, dtype=np.uint32)
    tokens: list[npt.NDArray[np.integer]] = []
    positions: list[npt.NDArray[np.integer]] = []
    columns = (packing.document_P, packing.start_P, packing.length_P, room_P)
    for document, start, length, room in zip(*(column.tolist() for column in columns), strict=True):
        whole = documents[document]
        tokens.append(whole if length == len(whole) else whole[start : start + length])
        positions.append(counting[:length])
        if room:
            tokens.append(zeros[:room])
            positions.append(zeros[:room])
    for name, parts in (("tokens", tokens), ("positions", positions)):
        dense = np.concatenate(parts, dtype=layout.dtypes[name], casting="unsafe")
        layout.view(records, name)[:] = dense.reshape(shape)
    segment_P = np.arange(len(last_P)) - np.searchsorted(packing.row_P, packing.row_P) + 1
    runs = np.stack([segment_P, np.zeros_like(segment_P)], axis=1).astype(layout.dtypes["segment_ids"])
    dense = np.repeat(runs.reshape(-1), np.stack([packing.length_P, room_P], axis=1).reshape(-1)).reshape(shape)
    layout.view(records, "segment_ids")[:] = dense
    layout.view(records, "loss_weights")[:] = loss_weights(dense)
    layout.set_crcs(records)
    return records


def loss_weights(segment_ids: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """uint8[R, S]: 1 where the next position belongs to the same document, which is not padding."""
    weights = np.zeros(segment_ids.shape, np.uint8)
    weights[:, :-1] = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
    return weights


def mask_crc(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """TFRecord's masked CRC: rotated right by 15 bits, plus a constant, modulo 2^32."""
    return ((crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK_DELTA)).astype("<u4")


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
