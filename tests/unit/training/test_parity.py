"""GPT-2 and Llama, judged by PyTorch through `transformers`: in, trained, and out again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_helpers import packed

from tokenmill.training import export, interchange
from tokenmill.training.batches import Batch
from tokenmill.training.settings import ModelSettings, OptimizerSettings

pytestmark = [pytest.mark.tensorflow, pytest.mark.judge]

ROOT = Path(__file__).parents[3]
JUDGE = ROOT / "tests" / "judges" / "transformers_judge.py"
CASES = ("gpt2", "gpt2-untied", "llama", "llama-grouped-tied")
FREE = {
    "gpt2-without-biases": ModelSettings(layers=2, d_model=32, heads=4, bias=False),
    "llama-untied-theta": ModelSettings(
        layers=1, d_model=32, heads=4, kv_heads=1, d_mlp=48, positions="rotary", norm="rmsnorm", activation="swiglu",
        tied_embeddings=False, bias=False, rope_theta=700.0, norm_epsilon=1e-4,
    ),
}  # fmt: skip
"""Models that begin here, not in the judge."""


def ask(command: str, folder: Path) -> None:
    python = Path(os.environ.get("TOKENMILL_JUDGES", ROOT / "build" / "judges")) / "bin" / "python"
    if not python.is_file():
        pytest.fail(f"the judge's environment is missing ({python}); run `make judges`")
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run([python, JUDGE, command, folder], capture_output=True, text=True, timeout=300, env=quiet)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    ask("make", folder)
    return folder


def decoder(settings: ModelSettings, vocab: int, length: int) -> Any:
    from tokenmill.training.model import Decoder
    from tokenmill.training.state import TrainState

    return TrainState(Decoder(settings, vocab, length), seed=5)


def loaded(folder: Path) -> tuple[Any, ModelSettings, dict[str, np.ndarray]]:
    config = json.loads((folder / "config.json").read_text())
    settings = interchange.settings_of(config)
    expected = dict(np.load(folder / "expected.npz"))
    state = decoder(settings, config["vocab_size"], expected["tokens"].shape[-1])
    state.load_weights(interchange.from_transformers(load_file(folder / "model.safetensors"), settings))
    return state, settings, expected


def logits_of(state: Any, tokens_BS: np.ndarray) -> np.ndarray:
    positions_BS = np.tile(np.arange(tokens_BS.shape[1], dtype=np.int32), (len(tokens_BS), 1))
    hidden_BSD = state.model(tokens_BS.astype(np.int32), np.ones_like(positions_BS), positions_BS)
    return state.model.logits(hidden_BSD).numpy()


def whole_rows(tokens_BS: np.ndarray) -> Batch:
    rows, length = tokens_BS.shape
    return Batch.of_rows(packed([list(row) for row in tokens_BS], rows, length), np.arange(rows))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(judged: Path, case: str) -> None:
    state, _, expected = loaded(judged / case)
    np.testing.assert_allclose(logits_of(state, expected["tokens"][0]), expected["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_three_steps_are_those_of_torch(judged: Path, case: str) -> None:
    import tensorflow as tf

    from tokenmill.training.update import Updater

    state, settings, expected = loaded(judged / case)
    optimizer = OptimizerSettings(
        learning_rate=0.01, beta1=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1, clip_norm=1.0
    )
    rows = expected["tokens"].shape[1]
    updater = Updater(state, optimizer, tf.distribute.get_strategy(), rows_per_replica=rows, micro_batch_size=rows)
    results = updater.run([whole_rows(tokens) for tokens in expected["tokens"]], [0.01] * 3)
    np.testing.assert_allclose(results.loss, expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(results.gradient_norm, expected["norms"], rtol=1e-4)
    found = interchange.to_transformers(state.weight_arrays(), settings)
    after = {key.removeprefix("after."): value for key, value in expected.items() if key.startswith("after.")}
    assert found.keys() == after.keys()
    for name in after:
        # Each of the three steps moves a weight by about the rate, 0.01: 0.1 % of all movement.
        np.testing.assert_allclose(found[name], after[name], atol=3e-5, rtol=1e-4, err_msg=name)


def test_what_is_exported_transformers_loads_to_the_same_logits(judged: Path, tmp_path: Path) -> None:
    expected = {}
    states = {case: loaded(judged / case)[:2] for case in CASES}
    states |= {case: (decoder(settings, 101, 24), settings) for case, settings in FREE.items()}
    for case, (state, settings) in states.items():
        weights = {name: array * 4 if array.ndim > 1 else array for name, array in state.weight_arrays().items()}
        state.load_weights(weights)
        export.export_model(
            tmp_path / case,
            weights,
            settings,
            vocab_size=101,
            sequence_length=24,
            end_of_document=0,
            tokenizer_folder=None,
        )
        tokens = np.random.default_rng(2).integers(0, 101, (3, 24))
        np.save(tmp_path / case / "tokens.npy", tokens)
        expected[case] = logits_of(state, tokens)
    ask("load", tmp_path)
    for case, logits in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / case / "logits.npy"), logits, atol=1e-4, rtol=1e-5, err_msg=case)
