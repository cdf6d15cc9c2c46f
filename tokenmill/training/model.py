"""The decoder, in Keras 3 layers: enough to be GPT-2 and Llama.

    decoder = Decoder(ModelSettings(layers=2), vocab_size=4096, sequence_length=256)
    hidden_BSD = decoder(tokens_BS, segment_ids_BS, positions_BS)
    logits_BSV = decoder.logits(hidden_BSD)

Weights have plain dotted names (`decoder.named_weights`), by which checkpoints and exports know them. They start from
numbers that depend on (seed, name) alone.
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tokenmill.training import functions
from tokenmill.training.functions import Tensor
from tokenmill.training.settings import ModelSettings

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
_INITIAL_DEVIATION = 0.02  # of GPT-2


class Linear(keras.Layer):
    """y = x W + b with W of shape [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name)
        self.kernel = self.add_weight(shape=(inputs, outputs), name="kernel", initializer="zeros")
        self.bias = self.add_weight(shape=(outputs,), name="bias", initializer="zeros") if bias else None
        self.outputs = outputs
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        y = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), tf.convert_to_tensor(self.kernel))
        if self.bias is not None:
            y = tf.nn.bias_add(y, tf.convert_to_tensor(self.bias))
        return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [self.outputs]], axis=0))

    def named_weights(self, prefix: str) -> dict[str, Any]:
        named = {f"{prefix}.kernel": self.kernel}
        return named if self.bias is None else named | {f"{prefix}.bias": self.bias}


class Norm(keras.Layer):
    """LayerNorm or RMSNorm over the last axis. Its weights and statistics are float32 under every policy."""

    def __init__(self, width: int, settings: ModelSettings, *, name: str) -> None:
        super().__init__(dtype="float32", autocast=False, name=name)
        self.rms = settings.norm == "rmsnorm"
        self.epsilon = settings.norm_epsilon
        self.scale = self.add_weight(shape=(width,), name="scale", initializer="ones", autocast=False)
        has_bias = settings.bias and not self.rms
        self.bias = None
        if has_bias:
            self.bias = self.add_weight(shape=(width,), name="bias", initializer="zeros", autocast=False)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        scale = tf.convert_to_tensor(self.scale)
        if self.rms:
            return functions.rms_norm(x, scale, self.epsilon)
        return functions.layer_norm(
            x, scale, None if self.bias is None else tf.convert_to_tensor(self.bias), self.epsilon
        )

    def named_weights(self, prefix: str) -> dict[str, Any]:
        named = {f"{prefix}.scale": self.scale}
        return named if self.bias is None else named | {f"{prefix}.bias": self.bias}


class Attention(keras.Layer):
    """Causal self-attention within each document of a packed row; grouped queries, optional rotary positions."""

    def __init__(self, settings: ModelSettings, *, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name)
        self.heads = settings.heads
        self.kv_heads = settings.kv_heads or settings.heads
        self.width = settings.d_model // settings.heads
        fused = (self.heads + 2 * self.kv_heads) * self.width
        self.qkv = Linear(settings.d_model, fused, bias=settings.bias, dtype=dtype, name="qkv")
        self.out = Linear(settings.d_model, settings.d_model, bias=settings.bias, dtype=dtype, name="out")
        self.built = True

    def call(self, x_BSD: Tensor, bias_B1SS: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, length = tf.unstack(tf.shape(x_BSD)[:2])
        heads = tf.reshape(self.qkv(x_BSD), [batch, length, self.heads + 2 * self.kv_heads, self.width])
        heads = tf.transpose(heads, [0, 2, 1, 3])
        q, k, v = tf.split(heads, [self.heads, self.kv_heads, self.kv_heads], axis=1)
        if rotary is not None:
            q, k = functions.rotate(q, rotary), functions.rotate(k, rotary)
        mixed = tf.transpose(functions.attention(q, k, v, bias_B1SS), [0, 2, 1, 3])
        return self.out(tf.reshape(mixed, tf.shape(x_BSD)))

    def named_weights(self, prefix: str) -> dict[str, Any]:
        return self.qkv.named_weights(f"{prefix}.qkv") | self.out.named_weights(f"{prefix}.out")


class Mlp(keras.Layer):
    """Two products with GELU between them, or SwiGLU with gate and value fused into one product."""

    def __init__(self, settings: ModelSettings, *, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name)
        self.gated = settings.activation == "swiglu"
        width = settings.mlp_width
        self.up = Linear(settings.d_model, width * (1 + self.gated), bias=settings.bias, dtype=dtype, name="up")
        self.down = Linear(width, settings.d_model, bias=settings.bias, dtype=dtype, name="down")
        self.built = True

    def call(self, x_BSD: Tensor) -> Tensor:
        wide = self.up(x_BSD)
        return self.down(functions.gated_silu(*tf.split(wide, 2, axis=-1)) if self.gated else functions.gelu(wide))

    def named_weights(self, prefix: str) -> dict[str, Any]:
        return self.up.named_weights(f"{prefix}.up") | self.down.named_weights(f"{prefix}.down")


class Block(keras.Layer):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, settings: ModelSettings, *, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name)
        self.attention_norm = Norm(settings.d_model, settings, name="attention_norm")
        self.attention = Attention(settings, dtype=dtype, name="attention")
        self.mlp_norm = Norm(settings.d_model, settings, name="mlp_norm")
        self.mlp = Mlp(settings, dtype=dtype, name="mlp")
        self.built = True

    def call(self, x_BSD: Tensor, bias_B1SS: Tensor, rotary: Any, drop: Any, site: int) -> Tensor:
        x_BSD = x_BSD + drop(self.attention(self.attention_norm(x_BSD), bias_B1SS, rotary), site)
        return x_BSD + drop(self.mlp(self.mlp_norm(x_BSD)), site + 1)

    def named_weights(self, prefix: str) -> dict[str, Any]:
        return (
            self.attention_norm.named_weights(f"{prefix}.attention_norm")
            | self.attention.named_weights(f"{prefix}.attention")
            | self.mlp_norm.named_weights(f"{prefix}.mlp_norm")
            | self.mlp.named_weights(f"{prefix}.mlp")
        )


class Decoder(keras.Model):
    """A decoder-only transformer with pre-norm blocks. `precision` is that of products; weights are float32."""

    def __init__(
        self,
        settings: ModelSettings,
        vocab_size: int,
        sequence_length: int,
        *,
        precision: str = "float32",
        recompute: bool = False,
    ) -> None:
        """With `recompute` the blocks' activations are not kept for the backward pass."""
        dtype = POLICIES[precision]
        super().__init__(dtype=dtype, name="decoder")
        self.settings = settings
        self.recompute = recompute
        self.vocab_size = vocab_size
        self.sequence_length = sequence_length
        self.embedding = self._table(vocab_size, "embedding")
        self.position_embedding = (
            self._table(sequence_length, "position_embedding") if settings.positions == "learned" else None
        )
        self.blocks = [Block(settings, dtype=dtype, name=f"block_{i}") for i in range(settings.layers)]
        self.final_norm = Norm(settings.d_model, settings, name="final_norm")
        self.unembedding = self.embedding if settings.tied_embeddings else self._table(vocab_size, "unembedding")
        self.built = True

    def _table(self, rows: int, name: str) -> Any:
        return self.add_weight(shape=(rows, self.settings.d_model), name=name, initializer="zeros", autocast=False)

    def call(
        self, tokens_BS: Tensor, segment_ids_BS: Tensor, positions_BS: Tensor, draws_B: Tensor = None, seed: int = 0
    ) -> Tensor:
        """Hidden states after the last norm, [B, S, D] in the compute type.

        `positions_BS` restart in each document; segment 0 is padding. With `draws_B` (int64, the rows' places in the
        order of training) dropout is on; without, it is off.
        """
        rate = self.settings.dropout

        def drop(x_BSX: Tensor, site: int) -> Tensor:
            return x_BSX if draws_B is None or not rate else functions.dropout(x_BSX, rate, seed, site, draws_B)

        x_BSD = tf.gather(tf.convert_to_tensor(self.embedding), tokens_BS)
        rotary = None
        if self.position_embedding is not None:
            x_BSD = x_BSD + tf.gather(tf.convert_to_tensor(self.position_embedding), positions_BS)
        else:
            width = self.settings.d_model // self.settings.heads
            rotary = functions.rotary_tables(positions_BS, width, self.settings.rope_theta)
        x_BSD = drop(tf.cast(x_BSD, self.compute_dtype), 0)
        bias_B1SS = functions.attention_bias(segment_ids_BS, tf.as_dtype(self.compute_dtype))
        for number, block in enumerate(self.blocks):
            call = partial(block.__call__, bias_B1SS=bias_B1SS, rotary=rotary, drop=drop, site=1 + 2 * number)
            x_BSD = (tf.recompute_grad(call) if self.recompute else call)(x_BSD)
        return self.final_norm(x_BSD)

    def logits(self, hidden_BSD: Tensor) -> Tensor:
        """[..., V] in float32, for generation and tests; training never holds them whole (see `objective`)."""
        table = tf.cast(tf.convert_to_tensor(self.unembedding), hidden_BSD.dtype)
        return tf.cast(tf.einsum("...d,vd->...v", hidden_BSD, table), tf.float32)

    def named_weights(self) -> dict[str, Any]:
        """Keras variables by dotted name, in a fixed order."""
        named = {"embedding": self.embedding}
        if self.position_embedding is not None:
            named["position_embedding"] = self.position_embedding
        for number, block in enumerate(self.blocks):
            named |= block.named_weights(f"blocks.{number}")
        named |= self.final_norm.named_weights("final_norm")
        return named if self.settings.tied_embeddings else named | {"unembedding": self.unembedding}


def initial_weights(shapes: dict[str, tuple[int, ...]], layers: int, seed: int) -> dict[str, np.ndarray]:
    """Random weights in GPT-2's way: normal with deviation 0.02, products that end a residual branch divided by
    √(2 × layers), biases 0, norms 1. Float32, by name."""
    weights = {}
    for name, shape in shapes.items():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("scale", "bias"):
            weights[name] = np.full(shape, 1.0 if kind == "scale" else 0.0, np.float32)
            continue
        deviation = _INITIAL_DEVIATION
        if name.endswith(("attention.out.kernel", "mlp.down.kernel")):
            deviation /= math.sqrt(2 * layers)
        generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
        weights[name] = generator.standard_normal(shape, np.float32) * np.float32(deviation)
    return weights
