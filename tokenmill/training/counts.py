"""How many parameters a model has and how many floating-point operations a token takes: exact, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.training.settings import ModelSettings


@dataclass(frozen=True)
class ModelCounts:
    parameters: int
    """Every trained number, embeddings included; tied tables once."""
    product_parameters: int
    """Those that a token is multiplied with: all kernels and the unembedding."""
    flops_per_token: int
    """Forward and backward; see `count`."""


def count(model: ModelSettings, *, vocab_size: int, sequence_length: int) -> ModelCounts:
    """Training FLOPs a token as in PaLM (Chowdhery et al. 2022, appendix B): 6 N + 12 L H Q T.

    N counts the parameters that take part in matrix products (so an unembedding, and no look-up tables), L layers,
    H heads, Q head width, T the sequence length. Recomputation and the causal half of attention are not deducted.
    """
    d, heads = model.d_model, model.heads
    head_width = d // heads
    qkv = (heads + 2 * (model.kv_heads or heads)) * head_width
    mlp_in = model.mlp_width * (2 if model.activation == "swiglu" else 1)
    kernels = model.layers * (d * qkv + d * d + d * mlp_in + model.mlp_width * d)
    biases = model.layers * (qkv + d + mlp_in + d) if model.bias else 0
    norm = d * (2 if model.bias and model.norm == "layernorm" else 1)
    tables = vocab_size * d * (1 if model.tied_embeddings else 2)
    tables += sequence_length * d if model.positions == "learned" else 0
    product_parameters = kernels + vocab_size * d
    return ModelCounts(
        parameters=kernels + biases + norm * (2 * model.layers + 1) + tables,
        product_parameters=product_parameters,
        flops_per_token=6 * product_parameters + 12 * model.layers * d * sequence_length,
    )
