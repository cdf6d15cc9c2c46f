"""A few lines of text that the model writes, for the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tokenmill.training.model import Decoder

TEMPERATURE = 0.8
TOP_K = 40


def generate(
    model: Decoder, prompts: Sequence[Sequence[int]], new_tokens: int, *, end_of_document: int, seed: int
) -> list[list[int]]:
    """Continuations of `prompts` (token ids, at least one each), without the prompts; end at `end_of_document`.

    The whole prefix is computed anew for each token: for the few tokens of a report that costs less than a cache of
    keys and values would in code. Rows that are full end early.
    """
    length = min(model.sequence_length, max(len(prompt) for prompt in prompts) + new_tokens)
    tokens_BS = np.zeros((len(prompts), length), np.int32)
    kept = [list(prompt)[-(length - 1) :] for prompt in prompts]
    for row, prompt in enumerate(kept):
        tokens_BS[row, : len(prompt)] = prompt
    positions_BS = np.tile(np.arange(length, dtype=np.int32), (len(prompts), 1))

    @tf.function(autograph=False)
    def next_logits(tokens_BS: tf.Tensor, last_B: tf.Tensor) -> tf.Tensor:
        hidden_BSD = model(tokens_BS, tf.ones_like(tokens_BS), tf.constant(positions_BS))
        return model.logits(tf.gather(hidden_BSD, last_B, batch_dims=1))

    generator = np.random.default_rng(seed)
    ends = [len(prompt) for prompt in kept]
    going = list(range(len(prompts)))
    for _ in range(new_tokens):
        going = [row for row in going if ends[row] < length]
        if not going:
            break
        logits_BV = next_logits(tf.constant(tokens_BS), tf.constant([end - 1 for end in ends])).numpy()
        for row in tuple(going):
            token = _sample(logits_BV[row], generator)
            if token == end_of_document:
                going.remove(row)
                continue
            tokens_BS[row, ends[row]] = token
            ends[row] += 1
    return [tokens_BS[row, len(kept[row]) : end].tolist() for row, end in enumerate(ends)]


def _sample(logits_V: np.ndarray, generator: np.random.Generator) -> int:
    best = np.argsort(logits_V, kind="stable")[-TOP_K:]
    scaled = logits_V[best].astype(np.float64) / TEMPERATURE
    share = np.exp(scaled - scaled.max())
    return int(generator.choice(best, p=share / share.sum()))
