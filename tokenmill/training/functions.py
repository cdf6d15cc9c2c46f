"""Stateless pieces of the model: norms, activations, rotary positions, the attention mask, dropout.

Shape suffixes in this room: B rows, S positions of a row, D d_model, H query heads, K key and value heads,
G = H / K query heads a key head, E width of a head, F width of the MLP, T = B × S tokens, V vocabulary, U updates.

Activations carry their own gradients: TensorFlow would keep and revisit every intermediate, and on a CPU these
element-wise passes over the widest tensor of the model cost as much as a matrix product.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any

_GELU_LINEAR = 1.5957691216057308  # 2 √(2/π)
_GELU_CUBIC = 0.07135481282052202  # 2 √(2/π) × 0.044715


@tf.custom_gradient
def gelu(x: Tensor) -> Any:
    """GELU in the tanh form of GPT-2, written as x σ(a x + b x³), which is the same function."""
    square = x * x
    gate = tf.sigmoid(x * (square * _GELU_CUBIC + _GELU_LINEAR))

    def gradient(upstream: Tensor) -> Tensor:
        slope = square * (3 * _GELU_CUBIC) + _GELU_LINEAR
        return upstream * (gate + x * slope * gate * (1 - gate))

    return x * gate, gradient


@tf.custom_gradient
def gated_silu(gate: Tensor, value: Tensor) -> Any:
    """SwiGLU's product, gate σ(gate) × value."""
    sigma = tf.sigmoid(gate)
    silu = gate * sigma

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
        return upstream * value * (sigma + silu * (1 - sigma)), upstream * silu

    return silu * value, gradient


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Over the last axis; statistics in float32, result in the type of `x`."""
    normal = _normal(x, scale, epsilon, True)
    return tf.cast(normal if bias is None else normal + bias, x.dtype)


def rms_norm(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last axis; statistics in float32, result in the type of `x`."""
    return tf.cast(_normal(x, scale, epsilon, False), x.dtype)


def _normal(x: Tensor, scale: Tensor, epsilon: float, centre: bool) -> Tensor:
    """x (centred or not) / its root mean square × scale, in float32.

    Its own gradient hands one sum back to `x`. TensorFlow's would be several, which meet the residual branch in an
    AddN of three, and such a sum has no fixed order (see `update`).
    """

    @tf.custom_gradient
    def normal(x: Tensor, scale: Tensor) -> Any:
        wide = tf.cast(x, tf.float32)
        if centre:
            wide = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True) + epsilon)
        unit = wide * inverse

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            d_unit = upstream * scale
            back = d_unit - unit * tf.reduce_mean(d_unit * unit, axis=-1, keepdims=True)
            if centre:
                back = back - tf.reduce_mean(d_unit, axis=-1, keepdims=True)
            d_scale = tf.reduce_sum(tf.reshape(upstream * unit, [-1, scale.shape[0]]), axis=0)
            return tf.cast(back * inverse, x.dtype), d_scale

        return unit * scale, gradient

    return normal(x, scale)


def rotary_tables(positions_BS: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 of shape [B, 1, S, E/2], for `rotate`."""
    exponents = tf.range(0, head_width, 2, dtype=tf.float32) / head_width
    angles = tf.cast(positions_BS, tf.float32)[:, None, :, None] * tf.pow(theta, -exponents)
    return tf.cos(angles), tf.sin(angles)


def rotate(x_BHSE: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding (Su et al. 2021) in Llama's layout: the two halves of a head form the pairs."""
    cosine, sine = (tf.cast(table, x_BHSE.dtype) for table in tables)
    first, second = tf.split(x_BHSE, 2, axis=-1)
    return tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention_bias(segment_ids_BS: Tensor, dtype: Any) -> Tensor:
    """[B, 1, S, S], 0 where a position may look (its own document, not ahead), else a large negative number."""
    length = tf.shape(segment_ids_BS)[1]
    order = tf.range(length)
    same_document = segment_ids_BS[:, :, None] == segment_ids_BS[:, None, :]
    allowed = same_document & (order[:, None] >= order[None, :])
    return tf.where(allowed, tf.zeros([], dtype), tf.constant(-30_000.0, dtype))[:, None]


def attention(q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, bias_B1SS: Tensor) -> Tensor:
    """Grouped-query attention; returns [B, H, S, E]. Query heads of one key head are stacked, not the keys repeated."""
    batch, heads, length, width = tf.unstack(tf.shape(q_BHSE))
    kv_heads = k_BKSE.shape[1]
    group = q_BHSE.shape[1] // kv_heads
    q = q_BHSE * tf.cast(q_BHSE.shape[3] ** -0.5, q_BHSE.dtype)
    if group > 1:
        q = tf.reshape(q, [batch, kv_heads, group * length, width])
        bias_B1SS = tf.tile(bias_B1SS, [1, 1, group, 1])
    # oneDNN and Eigen keep the statistics of a bfloat16 softmax in float32.
    weights = tf.nn.softmax(tf.matmul(q, k_BKSE, transpose_b=True) + bias_B1SS)
    return tf.reshape(tf.matmul(weights, v_BKSE), [batch, heads, length, width])


def dropout(x_BSX: Tensor, rate: float, seed: int, site: int, draws_B: Tensor) -> Tensor:
    """Dropout without state: what falls out depends on (seed, site, draw, element) alone.

    A draw is a row's place in the order of training (law 5), so the mask does not depend on how a global batch is
    split, nor on where a run was interrupted. `site` numbers the place in the model.
    """
    elements = tf.reduce_prod(tf.shape(x_BSX)[1:])
    key_B = _mix(_mix(tf.cast(draws_B & 0xFFFFFFFF, tf.uint32) ^ _word(seed)) + _word(site * 0x9E3779B9))
    key_B ^= _mix(tf.cast(tf.bitwise.right_shift(draws_B, tf.constant(32, tf.int64)), tf.uint32) + _word(0x85EBCA6B))
    index = tf.cast(tf.range(elements), tf.uint32) * _word(0x9E3779B9)
    bits = _mix(_mix(index[None, :] + key_B[:, None]) ^ key_B[:, None])
    kept = tf.cast(bits >= _word(int(rate * 2**32)), x_BSX.dtype) * tf.cast(1 / (1 - rate), x_BSX.dtype)
    return x_BSX * tf.reshape(kept, tf.shape(x_BSX))


def _word(value: int) -> Tensor:
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def _mix(x: Tensor) -> Tensor:
    """A bijective mixer of 32 bits with low bias (constants: Wellons, hash-prospector, "lowbias32")."""
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(16))) * _word(0x7FEB352D)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(15))) * _word(0x846CA68B)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(16)))
