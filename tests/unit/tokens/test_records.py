"""The record format, with TensorFlow's own reader as the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_mill import Mill, make_texts

from tokenmill.tokens.dataset import train_batches
from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.pack import pack
from tokenmill.tokens.records import RecordLayout, packed_records

pytestmark = pytest.mark.tensorflow


def read_with_tensorflow(path: Path, layout: RecordLayout) -> dict[str, np.ndarray]:
    """As any TensorFlow program would."""
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature((), tf.string) for name in layout.dtypes}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in spec}
    for record in tf.data.TFRecordDataset(str(path)):
        parsed = tf.io.parse_single_example(record, spec)
        for name, value in parsed.items():
            rows[name].append(tf.io.decode_raw(value, tf.as_dtype(layout.dtypes[name])).numpy())
    return {
        name: np.stack(values) if values else np.empty((0, layout.sequence_length)) for name, values in rows.items()
    }


@pytest.mark.parametrize("vocab_size", [300, 65_536, 65_537])
@pytest.mark.parametrize("sequence_length", [8, 200])
def test_tensorflow_reads_what_was_packed(tmp_path: Path, vocab_size: int, sequence_length: int) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 30, 40)
    documents = [random.integers(0, vocab_size, length) for length in lengths]
    layout = RecordLayout(sequence_length, vocab_size)
    packing = pack(lengths, sequence_length, "best_fit")
    records = packed_records(layout, packing, documents)
    path = tmp_path / "rows.tfrecord"
    path.write_bytes(records.tobytes())

    read = read_with_tensorflow(path, layout)

    assert read["tokens"].shape == (packing.rows, sequence_length)
    for name, values in read.items():
        assert np.array_equal(values, layout.view(records, name)), name
    for document, start, length, row, column in zip(
        packing.document_P, packing.start_P, packing.length_P, packing.row_P, packing.column_P, strict=True
    ):
        expected = documents[document][start : start + length]
        assert np.array_equal(read["tokens"][row, column : column + length], expected)
        assert read["positions"][row, column : column + length].tolist() == list(range(length))
        assert read["loss_weights"][row, column : column + length].tolist() == [1] * (length - 1) + [0]
        assert len(set(read["segment_ids"][row, column : column + length].tolist())) == 1


def test_tensorflow_writes_the_same_values(tmp_path: Path) -> None:
    """TensorFlow's own writer and its own Example give a file that parses to the same, with the same CRCs."""
    import tensorflow as tf

    layout = RecordLayout(8, 300)
    records = packed_records(layout, pack(np.array([3, 4]), 8, "best_fit"), [np.arange(3), np.arange(4)])
    ours = tf.train.Example.FromString(records[0].tobytes()[12:-4])
    path = tmp_path / "theirs.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(ours.SerializeToString(deterministic=True))
    assert path.read_bytes() == records[0].tobytes()


def test_a_snapshot_reads_the_same_by_every_road(mill: Mill) -> None:
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(80))})
    snapshot = mill.open()
    judged = read_with_tensorflow(snapshot.shard_paths()[0], snapshot.layout)
    rows = snapshot.manifest.train.rows
    random_access = snapshot.rows("train", np.arange(rows))
    assert np.array_equal(judged["tokens"], random_access.tokens_BS)
    assert np.array_equal(judged["segment_ids"], random_access.segment_ids_BS)
    assert np.array_equal(judged["positions"], random_access.positions_BS)
    assert np.array_equal(judged["loss_weights"], random_access.loss_weights_BS)

    for cursor in (0, 5, rows - 3, 4 * rows + 1):
        batches = train_batches(snapshot, seed=9, global_batch_size=6, cursor=cursor).take(400)
        assert all(spec.shape == (6, snapshot.layout.sequence_length) for spec in batches.element_spec.values())
        for number, batch in enumerate(batches.as_numpy_iterator()):
            expected = snapshot.rows("train", row_numbers(rows, 9, cursor + 6 * number, 6))
            assert np.array_equal(batch["tokens"], expected.tokens_BS)
            assert np.array_equal(batch["segment_ids"], expected.segment_ids_BS)
            assert np.array_equal(batch["positions"], expected.positions_BS)
            assert np.array_equal(batch["loss_weights"], expected.loss_weights_BS)
