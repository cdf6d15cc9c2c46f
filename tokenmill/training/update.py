"""The optimizer update, compiled: several of them a call.

Order inside an update (DESIGN: training): sum token losses and gradients over micro-batches and replicas, divide by the
summed token weights, look for inf and NaN, clip by the global norm, apply AdamW. Nothing is averaged, looked at or
clipped before everything is summed, so the update is the same, up to rounding, however a global batch is split.

An update whose gradient is not finite changes nothing but the loss scale: `step` stays, the cursor goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.training import objective
from tokenmill.training.batches import Batch
from tokenmill.training.functions import Tensor
from tokenmill.training.settings import OptimizerSettings
from tokenmill.training.state import TrainState

LOSS_SCALE_GROWTH_UPDATES = 2_000  # as in Micikevicius et al. 2018 and PyTorch's GradScaler
_MAX_LOSS_SCALE = 2.0**24


@dataclass(frozen=True)
class UpdateResults:
    """What the updates of one call gave, each an array of length U."""

    loss: np.ndarray
    """Mean cross-entropy a predicted token, nats."""
    gradient_norm: np.ndarray
    """Before clipping."""
    applied: np.ndarray
    """False where the update was skipped as not finite."""


class Updater:
    """Runs updates on a `TrainState` under a distribution strategy."""

    def __init__(
        self,
        state: TrainState,
        optimizer: OptimizerSettings,
        strategy: tf.distribute.Strategy,
        *,
        rows_per_replica: int,
        micro_batch_size: int,
        seed: int = 0,
        z_loss: float = 0.0,
        jit_compile: bool = False,
    ) -> None:
        assert rows_per_replica % micro_batch_size == 0, (rows_per_replica, micro_batch_size)
        _leave_sums_alone()
        self.state = state
        self.optimizer = optimizer
        self.strategy = strategy
        self.micro_batches = rows_per_replica // micro_batch_size
        self.micro_batch_size = micro_batch_size
        self.rows_per_replica = rows_per_replica
        self.seed = seed
        self.z_loss = z_loss
        self._gradients = self._replica_gradients
        if jit_compile:
            self._gradients = tf.function(self._replica_gradients, autograph=False, jit_compile=True)
        self._call = tf.function(self._updates, autograph=False, input_signature=self._signature())

    def run(self, batches: Sequence[Batch], learning_rates: Sequence[float]) -> UpdateResults:
        """One update a batch. `learning_rates[n]` is for the n-th update *applied* in this call.

        A batch holds this worker's rows: replicas in this process × rows_per_replica of them.
        """
        assert len(batches) == len(learning_rates)
        local, rows = self._local_replicas, self.rows_per_replica
        stacked = Batch.stack(batches, rows * local, self.state.sequence_length)
        shares = tuple(stacked.rows(i * rows, (i + 1) * rows).tensors() for i in range(local))
        loss, norm, applied = self._call(shares, tf.constant(learning_rates, tf.float32))
        return UpdateResults(loss.numpy(), norm.numpy(), applied.numpy())

    def compile(self) -> None:
        """Trace and optimise the graph by a call of no updates, so that compile time stands apart from step time."""
        self.run([], [])

    @property
    def _local_replicas(self) -> int:
        workers = getattr(self.strategy.extended, "_num_workers", 1)
        return int(self.strategy.num_replicas_in_sync) // int(workers)

    def _signature(self) -> Any:
        rows, length = self.rows_per_replica, self.state.sequence_length
        types = (tf.int32, tf.int32, tf.int32, tf.float32)
        share = (*(tf.TensorSpec([None, rows, length], t) for t in types), tf.TensorSpec([None, rows], tf.int64))
        return (share,) * self._local_replicas, tf.TensorSpec([None], tf.float32)

    def _updates(self, shares: Any, learning_rates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = tf.shape(learning_rates)[0]

        def body(i: Tensor, applied: Tensor, losses: Any, norms: Any, flags: Any) -> tuple[Any, ...]:
            loss, norm, finite = self._update(shares, i, learning_rates[applied])
            following = losses.write(i, loss), norms.write(i, norm), flags.write(i, finite)
            return i + 1, applied + tf.cast(finite, tf.int32), *following

        arrays = [tf.TensorArray(dtype, size=count, element_shape=[]) for dtype in (tf.float32, tf.float32, tf.bool)]
        _, _, losses, norms, flags = tf.while_loop(
            lambda i, *_: i < count, body, (tf.constant(0), tf.constant(0), *arrays), parallel_iterations=1
        )
        return losses.stack(), norms.stack(), flags.stack()

    def _update(self, shares: Any, index: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        strategy, state = self.strategy, self.state
        scale = state.loss_scale.read_value() if state.loss_scale is not None else tf.constant(1.0)

        def of_replica() -> Any:
            number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return self._gradients(shares[number % self._local_replicas], index, scale)

        gradients, loss, weight = strategy.run(of_replica)
        reduced = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, list(zip(gradients, state.weights, strict=True))
        )
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        weight = strategy.reduce(tf.distribute.ReduceOp.SUM, weight, axis=None)
        # A batch of padding alone has weight 0 and gradients 0: it divides by 1 and changes nothing but the decay.
        divisor = tf.maximum(weight, 1.0) * scale
        first = [strategy.experimental_local_results(gradient)[0] for gradient in reduced]
        # Not add_n, for the reason at `_leave_sums_alone`.
        norm = tf.sqrt(2 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(gradient) for gradient in first]))) / divisor
        loss = loss / tf.maximum(weight, 1.0)
        finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        factor = 1 / divisor
        if self.optimizer.clip_norm is not None:
            factor *= tf.minimum(1.0, self.optimizer.clip_norm / (norm + 1e-6))
        tf.cond(finite, lambda: self._apply(reduced, factor, rate), lambda: tf.constant(False))
        if state.loss_scale is not None:
            self._adjust_loss_scale(finite)
        return loss, norm, finite

    def _replica_gradients(self, share: Any, index: Tensor, scale: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Sums over this replica's rows of update `index`: gradients × scale, loss, token weights. All float32."""
        rows = [tensor[index] for tensor in share]
        if self.micro_batches == 1:
            return self._micro_gradients(rows, scale)
        split = [tf.reshape(tensor, [self.micro_batches, self.micro_batch_size, *tensor.shape[1:]]) for tensor in rows]

        def body(i: Tensor, gradients: list[Tensor], loss: Tensor, weight: Tensor) -> tuple[Any, ...]:
            more, more_loss, more_weight = self._micro_gradients([tensor[i] for tensor in split], scale)
            summed = [a + b for a, b in zip(gradients, more, strict=True)]
            return i + 1, summed, loss + more_loss, weight + more_weight

        zeros = [tf.zeros(variable.shape) for variable in self.state.weights]
        start = (tf.constant(0), zeros, tf.constant(0.0), tf.constant(0.0))
        _, gradients, loss, weight = tf.while_loop(
            lambda i, *_: i < self.micro_batches, body, start, parallel_iterations=1
        )
        return gradients, loss, weight

    def _micro_gradients(self, rows: list[Tensor], scale: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        tokens_BS, segment_ids_BS, positions_BS, weights_BS, draws_B = rows
        model = self.state.model
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.state.weights)
            hidden_BSD = model(tokens_BS, segment_ids_BS, positions_BS, draws_B=draws_B, seed=self.seed)
            scaled, plain = objective.weighted_loss_sum(
                hidden_BSD, tf.convert_to_tensor(model.unembedding), tokens_BS, weights_BS, scale, self.z_loss
            )
        gradients = tape.gradient(scaled, self.state.weights)
        dense = [_dense(gradient, like) for gradient, like in zip(gradients, self.state.weights, strict=True)]
        return dense, plain, tf.reduce_sum(weights_BS)

    def _apply(self, gradients: list[Any], factor: Tensor, rate: Tensor) -> Tensor:
        """AdamW (Loshchilov and Hutter 2019) with PyTorch's rounding order: decay first, epsilon beside √v̂."""
        settings, state = self.optimizer, self.state
        extended = self.strategy.extended
        step = extended_update_step(extended, state.step)
        beta1_power, beta2_power = tf.pow(settings.beta1, step), tf.pow(settings.beta2, step)
        epsilon = settings.epsilon * tf.sqrt(1 - beta2_power)

        def apply(variable: Any, m: Any, v: Any, gradient: Tensor, decay: float) -> None:
            if decay:
                variable.assign_sub(variable * (rate * decay))
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=m.handle, v=v.handle, beta1_power=beta1_power, beta2_power=beta2_power, lr=rate,
                beta1=settings.beta1, beta2=settings.beta2, epsilon=epsilon, grad=gradient * factor, use_locking=True,
            )  # fmt: skip

        for i, gradient in enumerate(gradients):
            decay = settings.weight_decay if state.decays[i] else 0.0
            moments = state.first_moments[i], state.second_moments[i]
            extended.update(state.weights[i], apply, args=(*moments, gradient, decay), group=True)
        return tf.constant(True)

    def _adjust_loss_scale(self, finite: Tensor) -> None:
        """Halve on a skipped update, double after 2,000 good ones in a row."""
        state = self.state
        good = tf.where(finite, state.good_updates.read_value() + 1, 0)
        grow = good >= LOSS_SCALE_GROWTH_UPDATES
        scale = state.loss_scale.read_value()
        scale = tf.where(finite, tf.where(grow, tf.minimum(scale * 2, _MAX_LOSS_SCALE), scale), scale / 2)
        extended = self.strategy.extended
        extended.update(state.loss_scale, lambda variable, value: variable.assign(value), args=(scale,), group=True)
        following = tf.where(grow, 0, good)
        extended.update(state.good_updates, lambda variable, value: variable.assign(value), args=(following,))


def _leave_sums_alone() -> None:
    """Keep TensorFlow from joining additions into AddN, which it then computes in the order in which inputs happen to
    be ready: the rounding depends on timing, and in a loop within a loop the accumulators collide (AlreadyExistsError,
    seen on 2.21 with `AddOpsRewrite`)."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def extended_update_step(extended: Any, step: Any) -> Tensor:
    """Count one more update; its number, from 1, as float32."""
    following = step.read_value() + 1
    extended.update(step, lambda variable, value: variable.assign(value), args=(following,), group=True)
    return tf.cast(following, tf.float32)


def _dense(gradient: Any, like: Any) -> Tensor:
    """Look-ups give a gradient by rows; tables are updated whole (Adam's moments decay everywhere)."""
    if gradient is None:
        return tf.zeros(like.shape)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, like.shape[0])
    return tf.cast(gradient, tf.float32)
