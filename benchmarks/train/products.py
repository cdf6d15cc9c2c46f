"""The matrix products of one update and nothing else: what MFU is measured against.

python -m benchmarks.train.products LENGTH bfloat16|float32
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.train.turns import BATCH, HEADS, LAYERS, VOCABULARY, WIDTH, Turns

Product = Callable[[], Any]


def linear(kind: str, tokens: int, inputs: int, outputs: int) -> list[Product]:
    """y = x W, and the gradients by x and W."""
    x, w, y = (tf.random.normal(shape) for shape in ([tokens, inputs], [inputs, outputs], [tokens, outputs]))
    x, w, y = (tf.cast(tensor, kind) for tensor in (x, w, y))
    return [
        lambda: tf.matmul(x, w),
        lambda: tf.matmul(y, w, transpose_b=True),
        lambda: tf.matmul(x, y, transpose_a=True),
    ]


def attention(kind: str, length: int) -> list[Product]:
    """q kᵀ and weights v, and the gradients of both."""
    q = tf.cast(tf.random.normal([BATCH, HEADS, length, WIDTH // HEADS]), kind)
    weights = tf.cast(tf.random.normal([BATCH, HEADS, length, length]), kind)
    outer: list[Product] = [lambda: tf.matmul(q, q, transpose_b=True)] * 2
    inner: list[Product] = [lambda: tf.matmul(weights, q)] * 2
    return [*outer, *inner, *[lambda: tf.matmul(weights, q, transpose_a=True)] * 2]


def main() -> None:
    length, kind = int(sys.argv[1]), sys.argv[2]
    tokens = BATCH * length
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    block = [product for inputs, outputs in shapes for product in linear(kind, tokens, inputs, outputs)]
    block += attention(kind, length)
    update = block * LAYERS + linear(kind, tokens, WIDTH, VOCABULARY)
    turns = Turns()
    while True:
        for product in update:
            product()
        turns.step()


if __name__ == "__main__":
    main()
