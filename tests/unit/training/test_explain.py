"""Attention weights against the model itself: causal, each row sums to one, and they mix values as the model does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenmill.training.settings import ModelSettings

pytestmark = pytest.mark.tensorflow
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"kv_heads": 2, "positions": "rotary", "norm": "rmsnorm", "activation": "swiglu", "bias": False},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_those_by_which_the_model_mixes(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    from tokenmill.training import functions
    from tokenmill.training.explain import attention_weights
    from tokenmill.training.model import Decoder, initial_weights

    decoder = Decoder(ModelSettings(layers=2, d_model=32, heads=4, **SHAPES[shape]), 50, 16)
    named = decoder.named_weights()
    for name, value in initial_weights({k: tuple(v.shape) for k, v in named.items()}, 2, seed=3).items():
        named[name].assign(20 * value if "qkv" in name else value)
    mixed: list[tuple[Any, Any]] = []
    before = functions.attention

    def spy(q: Any, k: Any, v: Any, bias: Any) -> Any:
        out = before(q, k, v, bias)
        mixed.append((v, out))
        return out

    monkeypatch.setattr(functions, "attention", spy)
    tokens = [7, 3, 9, 9, 1, 4]
    weights = attention_weights(decoder, tokens)
    assert weights.shape == (2, 4, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert np.abs(np.triu(weights, 1)).max() == 0
    assert weights.std() > 0.05
    for layer, (values, out) in enumerate(mixed):
        repeated = tf.repeat(values, 4 // values.shape[1], axis=1)[0].numpy()
        np.testing.assert_allclose(weights[layer] @ repeated, out[0].numpy(), rtol=1e-4, atol=1e-5)
    assert isinstance(decoder.blocks[0].attention, type(decoder.blocks[1].attention))
