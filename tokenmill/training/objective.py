"""The training objective: token-weighted cross-entropy from hidden states, without ever holding all logits.

Worked example: 8,192 tokens with a vocabulary of 50,257 would need 1.6 GB for float32 logits and as much again for
their gradient. In chunks of 166 tokens (`CHUNK_BYTES`) it is 33 MB each, whatever the batch.

The gradient is taken in the forward pass, chunk by chunk, while the chunk's logits are there (as in Liger Kernel's
fused linear cross-entropy, Hsu et al. 2024): the product is not computed twice, and the backward pass only scales.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tokenmill.training.functions import Tensor

CHUNK_BYTES = 32 * 2**20
"""Float32 logits of one chunk; small enough for a CPU's last-level cache, large enough for a full-speed product."""


def chunk_tokens(tokens: int, vocab_size: int) -> int:
    """Tokens in a chunk: as even as possible with at most `CHUNK_BYTES` of float32 logits each."""
    most = max(1, min(tokens, CHUNK_BYTES // (4 * vocab_size)))
    chunks = -(-tokens // most)
    return -(-tokens // chunks)


def weighted_loss_sum(
    hidden_BSD: Tensor, table_VD: Tensor, tokens_BS: Tensor, weights_BS: Tensor, scale: Tensor, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(scaled, plain): Σ weight × (cross-entropy + z-loss) over the tokens, in nats; `plain` has cross-entropy alone.

    `weights_BS[b, s]` is 1 where position s predicts token s + 1, else 0. Differentiate `scaled`, whose gradient is
    multiplied by `scale` *before* it is rounded to the compute type, which is what a float16 loss scale is for.
    """
    targets_BS = tf.concat([tokens_BS[:, 1:], tf.zeros_like(tokens_BS[:, :1])], axis=1)
    width = hidden_BSD.shape[-1]
    targets, weights = tf.reshape(targets_BS, [-1]), tf.reshape(weights_BS, [-1])

    @tf.custom_gradient
    def fused(hidden_TD: Tensor, table: Tensor) -> Any:
        plain, penalty, d_hidden, d_table = _chunks(hidden_TD, table, targets, weights, scale, z_loss)

        def gradient(upstream: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return d_hidden * tf.cast(upstream, d_hidden.dtype), d_table * upstream

        return (scale * (plain + penalty), plain), gradient

    scaled, plain = fused(tf.reshape(hidden_BSD, [-1, width]), table_VD)
    return scaled, plain


def loss_sum(hidden_BSD: Tensor, table_VD: Tensor, tokens_BS: Tensor, weights_BS: Tensor) -> Tensor:
    """Σ weight × cross-entropy in nats, for evaluation."""
    targets_BS = tf.concat([tokens_BS[:, 1:], tf.zeros_like(tokens_BS[:, :1])], axis=1)
    hidden_TD = tf.reshape(hidden_BSD, [-1, hidden_BSD.shape[-1]])
    targets, weights = tf.reshape(targets_BS, [-1]), tf.reshape(weights_BS, [-1])
    return _chunks(hidden_TD, table_VD, targets, weights, tf.constant(1.0), 0.0, gradients=False)[0]


def _chunks(
    hidden_TD: Tensor, table_VD: Tensor, targets_T: Tensor, weights_T: Tensor, scale: Tensor, z_loss: float,
    gradients: bool = True,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Loss sum, z-loss sum and (with `gradients`) the gradients of their sum × scale by hidden states and table."""
    tokens, width = hidden_TD.shape
    vocab_size = table_VD.shape[0]
    size = chunk_tokens(tokens, vocab_size)
    chunks = -(-tokens // size)
    pad = chunks * size - tokens
    hidden = tf.reshape(tf.pad(hidden_TD, [[0, pad], [0, 0]]), [chunks, size, width])
    targets = tf.reshape(tf.pad(targets_T, [[0, pad]]), [chunks, size])
    weights = tf.reshape(tf.pad(weights_T, [[0, pad]]), [chunks, size])
    table = tf.cast(table_VD, hidden_TD.dtype)

    def body(i: Tensor, loss: Tensor, penalty: Tensor, d_hidden: Tensor, d_table: Tensor) -> tuple[Tensor, ...]:
        hidden_CD, weight_C = hidden[i], weights[i]
        logits_CV = tf.cast(tf.matmul(hidden_CD, table, transpose_b=True), tf.float32)
        loss_C, slope_CV = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits_CV, labels=targets[i])
        loss += tf.reduce_sum(loss_C * weight_C)
        if not gradients:
            return i + 1, loss, penalty, d_hidden, d_table
        if z_loss:
            picked_C = tf.gather(logits_CV, targets[i], batch_dims=1)
            log_sum_C = loss_C + picked_C
            penalty += z_loss * tf.reduce_sum(tf.square(log_sum_C) * weight_C)
            softmax_CV = slope_CV + tf.one_hot(targets[i], vocab_size)
            slope_CV += (2 * z_loss * log_sum_C)[:, None] * softmax_CV
        slope_CV = tf.cast(slope_CV * (weight_C * scale)[:, None], hidden_CD.dtype)
        d_hidden = d_hidden.write(i, tf.matmul(slope_CV, table))
        d_table += tf.cast(tf.matmul(slope_CV, hidden_CD, transpose_a=True), tf.float32)
        return i + 1, loss, penalty, d_hidden, d_table

    start = (
        tf.constant(0),
        tf.constant(0.0),
        tf.constant(0.0),
        tf.TensorArray(hidden_TD.dtype, size=chunks, element_shape=[size, width]),
        tf.zeros([vocab_size if gradients else 0, width]),
    )
    _, loss, penalty, d_hidden, d_table = tf.while_loop(
        lambda i, *_: i < chunks, body, start, parallel_iterations=1, maximum_iterations=chunks
    )
    if not gradients:
        return (loss,)
    return loss, penalty, tf.reshape(d_hidden.stack(), [chunks * size, width])[:tokens], d_table
