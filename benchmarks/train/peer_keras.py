"""Keras `fit`: python peer_keras.py ROWS.npy bf16|bf16-jit|float32|float32-jit."""

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from turns import BATCH, BETAS, CLIP_NORM, HEADS, LAYERS, LEARNING_RATE, VOCABULARY, WEIGHT_DECAY, WIDTH, Turns


class Positions(keras.layers.Layer):
    """Adds a learned position to each token."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(shape[1], shape[2]), initializer="zeros", name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def build(length: int) -> keras.Model:
    layers = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    embedding = layers.ReversibleEmbedding(VOCABULARY, WIDTH, tie_weights=True)
    x = Positions()(embedding(tokens))
    for _ in range(LAYERS):
        normal = layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normal, normal, use_causal_mask=True)
        wide = layers.Dense(4 * WIDTH)(layers.LayerNormalization(epsilon=1e-5)(x))
        x = x + layers.Dense(WIDTH)(layers.Activation(lambda y: keras.activations.gelu(y, approximate=True))(wide))
    return keras.Model(tokens, embedding(layers.LayerNormalization(epsilon=1e-5)(x), reverse=True))


class Steps(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.turns.step()


def main() -> None:
    rows, setting = np.load(sys.argv[1]), sys.argv[2]
    keras.config.set_dtype_policy("float32" if setting.startswith("float32") else "mixed_bfloat16")
    model = build(rows.shape[1])
    optimizer = keras.optimizers.AdamW(
        LEARNING_RATE, weight_decay=WEIGHT_DECAY, beta_1=BETAS[0], beta_2=BETAS[1], global_clipnorm=CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=setting.endswith("jit"))
    targets = np.roll(rows, -1, axis=1)
    weights = np.ones(rows.shape, np.float32)
    weights[:, -1] = 0
    data = tf.data.Dataset.from_tensor_slices((rows, targets, weights)).repeat().batch(BATCH, drop_remainder=True)
    model.fit(data.prefetch(4), steps_per_epoch=10**6, verbose=0, callbacks=[Steps()])


if __name__ == "__main__":
    main()
