"""The decoder: documents in a packed row do not see each other; dropout and counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from training_helpers import LENGTH, VOCAB, packed

from tokenmill.training import counts
from tokenmill.training.settings import ModelSettings

pytestmark = pytest.mark.tensorflow

GPT2 = ModelSettings(layers=2, d_model=16, heads=4)
LLAMA = ModelSettings(
    layers=2, d_model=16, heads=4, kv_heads=2, positions="rotary", norm="rmsnorm", activation="swiglu", bias=False
)


def state_of(settings: ModelSettings, precision: str = "float32") -> Any:
    from tokenmill.training.model import Decoder
    from tokenmill.training.state import TrainState

    state = TrainState(Decoder(settings, VOCAB, LENGTH, precision=precision), seed=1)
    state.load_weights({n: a * 5 if a.ndim > 1 else a for n, a in state.weight_arrays().items()})
    return state


def logits(state: Any, rows: Any) -> np.ndarray:
    hidden_BSD = state.model(rows.tokens_BS, rows.segment_ids_BS, rows.positions_BS)
    return state.model.logits(hidden_BSD).numpy()


@pytest.mark.parametrize("settings", [GPT2, LLAMA])
def test_packed_documents_get_the_logits_that_they_get_alone(settings: ModelSettings) -> None:
    state = state_of(settings)
    documents = [[5, 6, 7, 8, 9, 0], [50, 40, 30, 0], [11, 12, 0]]
    together = logits(state, packed(documents, 1))[0]
    at = 0
    for document in documents:
        alone = logits(state, packed([document], 1))[0, : len(document)]
        np.testing.assert_allclose(together[at : at + len(document)], alone, atol=2e-5)
        at += len(document)


def test_nothing_looks_ahead() -> None:
    state = state_of(GPT2)
    one, other = packed([[5, 6, 7, 8, 9, 0]], 1), packed([[5, 6, 7, 80, 90, 0]], 1)
    np.testing.assert_array_equal(logits(state, one)[0, :3], logits(state, other)[0, :3])


def test_bfloat16_products_are_near_float32_and_logits_are_float32() -> None:
    rows = packed([[5, 6, 7, 8, 9, 0]], 1)
    wide, narrow = logits(state_of(LLAMA), rows), logits(state_of(LLAMA, "bfloat16"), rows)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, atol=0.05 * np.abs(wide).max())


@pytest.mark.parametrize(
    ("positions", "norm", "activation", "tied", "bias", "kv_heads"),
    [
        *product(("learned", "rotary"), ("layernorm", "rmsnorm"), ("gelu", "swiglu"), (True, False), (True,), (2,)),
        ("learned", "layernorm", "gelu", True, False, None),
        ("rotary", "rmsnorm", "swiglu", False, False, 1),
    ],
)
def test_parameters_are_counted_exactly(
    positions: str, norm: str, activation: str, tied: bool, bias: bool, kv_heads: int | None
) -> None:
    settings = ModelSettings.model_validate(
        {"layers": 2, "d_model": 16, "heads": 4, "d_mlp": 24, "positions": positions, "norm": norm,
         "kv_heads": kv_heads, "activation": activation, "tied_embeddings": tied, "bias": bias}
    )  # fmt: skip
    from tokenmill.training.model import Decoder

    variables = Decoder(settings, VOCAB, LENGTH).named_weights().values()
    found = counts.count(settings, vocab_size=VOCAB, sequence_length=LENGTH)
    assert found.parameters == sum(int(np.prod(variable.shape)) for variable in variables)


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    """124,439,808 (Radford et al. 2019, as released); FLOPs by hand from the formula's own terms."""
    small = ModelSettings(layers=12, d_model=768, heads=12)
    found = counts.count(small, vocab_size=50_257, sequence_length=1_024)
    assert found.parameters == 124_439_808
    kernels = 12 * 12 * 768**2
    assert found.flops_per_token == 6 * (kernels + 50_257 * 768) + 12 * 12 * 768 * 1_024


def test_dropout_depends_on_seed_site_and_draw_alone() -> None:
    import tensorflow as tf

    from tokenmill.training.functions import dropout

    x = tf.ones([4, 50, 40])
    draws = tf.constant([3, 2**33 + 3, 5, 3], tf.int64)
    mask = dropout(x, 0.25, 1, 2, draws).numpy()
    assert set(np.unique(mask)) == {0.0, np.float32(1 / 0.75)}
    assert np.mean(mask == 0) == pytest.approx(0.25, abs=0.02)
    np.testing.assert_array_equal(mask[0], mask[3])
    assert (mask[0] != mask[1]).mean() > 0.2
    assert (mask[0] != mask[2]).mean() > 0.2
    np.testing.assert_array_equal(dropout(x[1:2], 0.25, 1, 2, draws[1:2]).numpy()[0], mask[1])
    for seed, site in ((2, 2), (1, 3)):
        assert (dropout(x, 0.25, seed, site, draws).numpy() != mask).mean() > 0.2


def test_activations_have_the_gradients_of_their_definitions() -> None:
    import tensorflow as tf

    from tokenmill.training import functions

    x, y = tf.linspace(-6.0, 6.0, 101), tf.linspace(2.0, -3.0, 101)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        ours, theirs = functions.gelu(x), tf.nn.gelu(x, approximate=True)
        gated, plain = functions.gated_silu(x, y), tf.nn.silu(x) * y
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(gated, plain, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=1e-5)
    for variable in (x, y):
        np.testing.assert_allclose(tape.gradient(gated, variable), tape.gradient(plain, variable), atol=1e-5)


@pytest.mark.parametrize("centre", [False, True])
def test_norms_have_the_gradients_of_their_definitions(centre: bool) -> None:
    import tensorflow as tf

    from tokenmill.training import functions

    generator = np.random.default_rng(0)
    x, scale, upstream = (tf.constant(generator.standard_normal(s), tf.float32) for s in ((3, 4, 8), (8,), (3, 4, 8)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, scale])
        ours = functions.layer_norm(x, scale, None, 1e-3) if centre else functions.rms_norm(x, scale, 1e-3)
        wide = x - tf.reduce_mean(x, -1, keepdims=True) if centre else x
        theirs = wide / tf.sqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + 1e-3) * scale
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for variable in (x, scale):
        expected = tape.gradient(theirs, variable, upstream)
        np.testing.assert_allclose(tape.gradient(ours, variable, upstream), expected, atol=1e-5)
