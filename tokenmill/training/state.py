"""Everything on the devices that the future of a run depends on: weights, optimizer slots, loss scale, step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.training.model import Decoder, initial_weights

_INITIAL_LOSS_SCALE = 1.0
"""Losses are summed over tokens, not averaged, so gradients are thousands of times larger than the usual ones, for
which 2¹⁶ is the custom."""


class TrainState:
    """Variables by name, made inside `strategy.scope()`. Master weights and moments are float32."""

    def __init__(self, model: Decoder, *, seed: int, dynamic_loss_scale: bool = False) -> None:
        self.model = model
        self.sequence_length = model.sequence_length
        named = model.named_weights()
        self.names = list(named)
        self._keras_variables = list(named.values())
        self.weights: list[Any] = [variable.value for variable in self._keras_variables]
        self.decays = [is_decayed(name) for name in self.names]
        self.first_moments = [_zeros(variable.shape, f"m/{name}") for name, variable in named.items()]
        self.second_moments = [_zeros(variable.shape, f"v/{name}") for name, variable in named.items()]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.loss_scale: Any = None
        self.good_updates: Any = None
        if dynamic_loss_scale:
            self.loss_scale = tf.Variable(_INITIAL_LOSS_SCALE, trainable=False, name="loss_scale")
            self.good_updates = tf.Variable(0, trainable=False, name="good_updates")
        self._load_initial_weights(seed)

    def load_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`ValueError` if a name is missing, unknown, or has another shape."""
        _check(arrays, {name: tuple(v.shape) for name, v in zip(self.names, self.weights, strict=True)})
        for name, variable in zip(self.names, self.weights, strict=True):
            variable.assign(arrays[name])

    def reset(self, seed: int) -> None:
        """As newly made."""
        self._load_initial_weights(seed)
        fresh = {name: np.zeros(variable.shape, np.float32) for name, variable in self._optimizer_variables().items()}
        if self.loss_scale is not None:
            fresh["loss_scale"] = np.array(_INITIAL_LOSS_SCALE, np.float32)
        self.load_optimizer(fresh)

    def _load_initial_weights(self, seed: int) -> None:
        shapes = {name: tuple(variable.shape) for name, variable in zip(self.names, self.weights, strict=True)}
        self.load_weights(initial_weights(shapes, self.model.settings.layers, seed))

    def weight_arrays(self) -> dict[str, np.ndarray]:
        """Copies, by name."""
        return {name: np.array(variable.numpy()) for name, variable in zip(self.names, self.weights, strict=True)}

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """Copies of everything besides the weights, by name."""
        return {name: np.array(variable.numpy()) for name, variable in self._optimizer_variables().items()}

    def load_optimizer(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`ValueError` if a name is missing, unknown, or has another shape."""
        variables = self._optimizer_variables()
        _check(arrays, {name: tuple(variable.shape) for name, variable in variables.items()})
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _optimizer_variables(self) -> dict[str, Any]:
        named = {f"m.{name}": variable for name, variable in zip(self.names, self.first_moments, strict=True)}
        named |= {f"v.{name}": variable for name, variable in zip(self.names, self.second_moments, strict=True)}
        named["step"] = self.step
        if self.loss_scale is not None:
            named |= {"loss_scale": self.loss_scale, "good_updates": self.good_updates}
        return named


def is_decayed(name: str) -> bool:
    """Weight decay is for matrices: it skips norms and biases."""
    return not name.endswith((".scale", ".bias"))


def _zeros(shape: Any, name: str) -> Any:
    return tf.Variable(tf.zeros(shape), trainable=False, name=name.replace(".", "_"))


def _check(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if set(arrays) != set(shapes):
        raise ValueError(f"names differ: {sorted(set(arrays) ^ set(shapes))[:5]}")
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name}: shape {arrays[name].shape}, expected {shape}")
