"""The fused cross-entropy is the plain one, in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

B, S, D, V = 3, 7, 8, 40


def data() -> tuple[Any, ...]:
    generator = np.random.default_rng(0)
    hidden = generator.standard_normal((B, S, D)).astype(np.float32)
    table = generator.standard_normal((V, D)).astype(np.float32)
    tokens = generator.integers(0, V, (B, S)).astype(np.int32)
    weights = (generator.random((B, S)) < 0.7).astype(np.float32)
    weights[:, -1] = 0
    return hidden, table, tokens, weights


def plain(hidden: Any, table: Any, tokens: Any, weights: Any, z_loss: float) -> tuple[Any, Any]:
    import tensorflow as tf

    logits = tf.einsum("bsd,vd->bsv", hidden, table)
    targets = np.concatenate([tokens[:, 1:], np.zeros((B, 1), np.int32)], axis=1)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    penalty = z_loss * tf.square(tf.reduce_logsumexp(logits, axis=-1))
    return tf.reduce_sum((losses + penalty) * weights), tf.reduce_sum(losses * weights)


@pytest.mark.parametrize("chunk", [1, 4, 21, 1000])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_loss_and_gradients_are_those_of_the_definition(
    chunk: int, z_loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from tokenmill.training import objective

    monkeypatch.setattr(objective, "CHUNK_BYTES", 4 * V * chunk)
    hidden, table, tokens, weights = data()
    hidden, table = tf.constant(hidden), tf.constant(table)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([hidden, table])
        scaled, loss = objective.weighted_loss_sum(hidden, table, tokens, weights, tf.constant(4.0), z_loss)
        wanted, wanted_loss = plain(hidden, table, tokens, weights, z_loss)
    assert float(loss) == pytest.approx(float(wanted_loss), rel=1e-5)
    assert float(scaled) == pytest.approx(4 * float(wanted), rel=1e-5)
    assert float(objective.loss_sum(hidden, table, tokens, weights)) == pytest.approx(float(wanted_loss), rel=1e-5)
    for variable in (hidden, table):
        np.testing.assert_allclose(tape.gradient(scaled, variable), 4 * tape.gradient(wanted, variable), atol=1e-4)


@pytest.mark.parametrize(("tokens", "vocab"), [(8_192, 50_257), (8_192, 4_096), (5, 10**9), (1, 7), (1_000, 8_192)])
def test_chunks_are_even_and_small(tokens: int, vocab: int) -> None:
    from tokenmill.training.objective import CHUNK_BYTES, chunk_tokens

    size = chunk_tokens(tokens, vocab)
    assert size == 1 or 4 * vocab * size <= CHUNK_BYTES
    chunks = -(-tokens // size)
    assert chunks * size - tokens < chunks


def test_full_logits_never_exist_in_the_graph() -> None:
    """At vocabulary 50,257 no tensor of the compiled loss and its gradient is larger than a chunk or the table."""
    import tensorflow as tf

    from tokenmill.training import objective

    vocab, tokens = 50_257, 4_096

    @tf.function(autograph=False)
    def gradients(hidden: Any, table: Any, ids: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([hidden, table])
            scaled, _ = objective.weighted_loss_sum(hidden, table, ids, weights, tf.constant(1.0))
        return tape.gradient(scaled, [hidden, table])

    concrete = gradients.get_concrete_function(
        tf.TensorSpec([4, 1_024, 16]), tf.TensorSpec([vocab, 16]), tf.TensorSpec([4, 1_024], tf.int32),
        tf.TensorSpec([4, 1_024]),
    )  # fmt: skip
    graphs = [concrete.graph, *(f.graph for f in concrete.graph._functions.values() if hasattr(f, "graph"))]
    shapes = [tensor.shape for graph in graphs for op in graph.get_operations() for tensor in op.outputs]
    largest = max(shape.num_elements() or 0 for shape in shapes if shape.rank is not None)
    assert largest < tokens * vocab / 8
