"""The update: the same however the global batch is split, skipped whole where one replica is not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training_helpers import LENGTH, VOCAB, FakeSnapshot

from tokenmill.training.batches import Batch
from tokenmill.training.settings import ModelSettings, OptimizerSettings

pytestmark = pytest.mark.tensorflow

ROWS = 8
MODEL = ModelSettings(layers=1, d_model=16, heads=2, dropout=0.1)


def batch(at: int = 0) -> Batch:
    return Batch.of_rows(FakeSnapshot().rows("train", np.arange(at, at + ROWS)), np.arange(at, at + ROWS))


def updater(
    *,
    replicas: int = 1,
    micro: int | None = None,
    model: ModelSettings = MODEL,
    precision: str = "float32",
    recompute: bool = False,
    **changes: Any,
) -> Any:
    from tokenmill.training.devices import Devices, strategy_for
    from tokenmill.training.model import Decoder
    from tokenmill.training.state import TrainState
    from tokenmill.training.update import Updater

    strategy = strategy_for(Devices("cpu", tuple(f"/CPU:{i}" for i in range(replicas)), (), ()))
    with strategy.scope():
        decoder = Decoder(model, VOCAB, LENGTH, precision=precision, recompute=recompute)
        state = TrainState(decoder, seed=3, dynamic_loss_scale=precision == "float16")
    rows = ROWS // replicas
    settings = OptimizerSettings(**{"learning_rate": 0.01, **changes})
    return Updater(state, settings, strategy, rows_per_replica=rows, micro_batch_size=micro or rows, seed=3)


def everything(of: Any) -> dict[str, np.ndarray]:
    return of.state.weight_arrays() | of.state.optimizer_arrays()


@pytest.mark.parametrize(("replicas", "micro"), [(1, 4), (1, 1), (2, 4), (2, 2)])
def test_every_split_of_a_batch_makes_the_same_update(replicas: int, micro: int) -> None:
    whole, split = updater(), updater(replicas=replicas, micro=micro)
    for at in (0, ROWS):
        expected, found = whole.run([batch(at)], [0.01]), split.run([batch(at)], [0.01])
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
        np.testing.assert_allclose(found.gradient_norm, expected.gradient_norm, rtol=1e-4)
    left, right = everything(whole), everything(split)
    for name in left:
        # AdamW divides by the root of a square, so a gradient near zero may turn rounding into a whole step.
        np.testing.assert_allclose(left[name], right[name], rtol=2e-3, atol=2e-4, err_msg=name)


def test_activations_computed_again_make_the_same_update() -> None:
    kept, again = updater(), updater(recompute=True, micro=4)
    expected, found = kept.run([batch()], [0.01]), again.run([batch()], [0.01])
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
    np.testing.assert_allclose(found.gradient_norm, expected.gradient_norm, rtol=1e-5)
    left, right = everything(kept), everything(again)
    for name in left:
        if name.startswith("m."):
            np.testing.assert_allclose(right[name], left[name], rtol=1e-3, atol=1e-7, err_msg=name)
    assert not wide_sums(again)


def wide_sums(of: Any) -> list[str]:
    """Sums whose rounding depends on timing; see `test_no_sum_of_the_update_depends_on_timing`."""
    graph = of._call.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert len(nodes) > 100
    return [node.name for node in nodes if node.op == "AddN" and node.attr["N"].i > 2]


def test_cutting_updates_into_calls_changes_no_bit() -> None:
    together, apart = updater(), updater()
    together.run([batch(0), batch(ROWS)], [0.01, 0.02])
    apart.run([batch(0)], [0.01])
    apart.run([batch(ROWS)], [0.02])
    left, right = everything(together), everything(apart)
    assert all(left[name].tobytes() == right[name].tobytes() for name in left)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_gradient_that_is_not_finite_on_the_second_replica_is_skipped_on_both(bad: float, precision: str) -> None:
    of = updater(replicas=2, precision=precision)
    of.run([batch()], [0.01])
    before = everything(of)
    weights = batch().loss_weights_BS.copy()
    weights[ROWS - 1, 0] = bad
    results = of.run([replace(batch(), loss_weights_BS=weights), batch(ROWS)], [0.01, 0.01])
    assert results.applied.tolist() == [False, True]
    after = everything(of)
    assert after["step"] == before["step"] + 1
    assert all(np.isfinite(array).all() for array in after.values())
    if precision == "float16":
        assert after["loss_scale"] == before["loss_scale"] / 2
    import tensorflow as tf

    for variable in of.state.weights:
        first, second = (value.numpy() for value in of.strategy.experimental_local_results(variable))
        assert np.array_equal(first, second)
    assert tf.config.list_logical_devices("CPU")[1:]


def test_a_skipped_update_does_not_use_up_its_learning_rate() -> None:
    """Rates belong to steps: the update after a skipped one gets the rate that the skipped one would have had."""
    skipping, plain = updater(), updater()
    weights = batch().loss_weights_BS.copy()
    weights[0, 0] = np.nan
    skipping.run([replace(batch(), loss_weights_BS=weights), batch(ROWS)], [0.01, 0.5])
    plain.run([batch(ROWS)], [0.01])
    left, right = everything(skipping), everything(plain)
    assert all(left[name].tobytes() == right[name].tobytes() for name in left)


def test_clipping_uses_the_norm_of_the_whole_gradient() -> None:
    free, clipped = updater(replicas=2, clip_norm=None), updater(replicas=2, clip_norm=0.01)
    norm = free.run([batch()], [0.01]).gradient_norm[0]
    assert clipped.run([batch()], [0.01]).gradient_norm[0] == pytest.approx(norm)
    assert norm > 0.1
    left, right = everything(free), everything(clipped)
    for name in left:
        if name.startswith("m."):
            np.testing.assert_allclose(right[name], left[name] * (0.01 / (norm + 1e-6)), rtol=1e-3, atol=1e-9)


def test_decay_skips_norms_and_biases() -> None:
    plain, decayed = updater(weight_decay=0.0), updater(weight_decay=0.5)
    before = plain.state.weight_arrays()
    plain.run([batch()], [0.01])
    decayed.run([batch()], [0.01])
    left, right = plain.state.weight_arrays(), decayed.state.weight_arrays()
    for name in left:
        shrunk = 0.5 * 0.01 * before[name]
        expected = left[name] if name.endswith((".scale", ".bias")) else left[name] - shrunk
        np.testing.assert_allclose(right[name], expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_step_of_adamw_by_hand() -> None:
    """The first step: m̂ = g and v̂ = g², so each weight moves by rate × g / (|g| + ε), after its decay."""
    of = updater(weight_decay=0.1, clip_norm=None, epsilon=1e-3, beta1=0.9, beta2=0.95)
    before = of.state.weight_arrays()
    of.run([batch()], [0.02])
    moments, after = of.state.optimizer_arrays(), of.state.weight_arrays()
    for name in before:
        gradient = moments[f"m.{name}"] / 0.1
        np.testing.assert_allclose(moments[f"v.{name}"], 0.05 * gradient**2, rtol=1e-4, atol=1e-12)
        decay = 0.0 if name.endswith((".scale", ".bias")) else 0.1
        expected = before[name] * (1 - 0.02 * decay) - 0.02 * gradient / (np.abs(gradient) + 1e-3)
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("llama", [False, True])
def test_no_sum_of_the_update_depends_on_timing(precision: str, llama: bool) -> None:
    """AddN of three or more begins with whichever buffer is free: two runs of the same update then differ in bits."""
    changes = {"kv_heads": 1, "positions": "rotary", "norm": "rmsnorm", "activation": "swiglu"} if llama else {}
    of = updater(model=MODEL.model_copy(update=changes), precision=precision, micro=4)
    assert not wide_sums(of)
