"""What a trained model looks at: its attention weights on a text. For notebooks and people; eager, one row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.training import export, functions
from tokenmill.training.model import Attention, Decoder
from tokenmill.training.settings import ModelSettings


def load_decoder(folder: Path, model: ModelSettings, *, vocab_size: int, sequence_length: int) -> Decoder:
    """The model that `export_model` wrote into `folder`, in float32."""
    weights = export.read_model(folder, model)
    decoder = Decoder(model, vocab_size, sequence_length)
    for name, variable in decoder.named_weights().items():
        variable.assign(weights[name])
    return decoder


def attention_weights(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """[layers, H, S, S]: how much of each position (last axis) each position takes; every row sums to 1."""
    recordings = [_Recording(block.attention) for block in decoder.blocks]
    row = tf.constant([list(tokens)], tf.int32)
    try:
        for block, recording in zip(decoder.blocks, recordings, strict=True):
            object.__setattr__(block, "attention", recording)
        decoder(row, tf.ones_like(row), tf.range(len(tokens))[None])
    finally:
        for block, recording in zip(decoder.blocks, recordings, strict=True):
            object.__setattr__(block, "attention", recording.attention)
    return np.stack([recording.weights_HSS for recording in recordings])


class _Recording:
    """Stands before an attention, and keeps the weights of what passes through."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.weights_HSS = np.zeros((0, 0, 0), np.float32)

    def __call__(self, x_BSD: Any, bias_B1SS: Any, rotary: Any) -> Any:
        own = self.attention
        batch, length = tf.unstack(tf.shape(x_BSD)[:2])
        heads = tf.reshape(own.qkv(x_BSD), [batch, length, own.heads + 2 * own.kv_heads, own.width])
        q, k, _ = tf.split(tf.transpose(heads, [0, 2, 1, 3]), [own.heads, own.kv_heads, own.kv_heads], axis=1)
        if rotary is not None:
            q, k = functions.rotate(q, rotary), functions.rotate(k, rotary)
        k = tf.repeat(k, own.heads // own.kv_heads, axis=1)
        scores = tf.matmul(q, k, transpose_b=True) * own.width**-0.5 + bias_B1SS
        self.weights_HSS = tf.nn.softmax(scores)[0].numpy()
        return own(x_BSD, bias_B1SS, rotary)
