"""Weights to and from the names and layouts of `transformers`: GPT2LMHeadModel and LlamaForCausalLM.

A model with learned positions, LayerNorm and GELU is a GPT-2; one with rotary positions, RMSNorm and SwiGLU is a Llama.
Other mixtures train here, and have no class there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill.training.settings import ModelSettings

Arrays = Mapping[str, np.ndarray]


def architecture(model: ModelSettings) -> str | None:
    """The class of `transformers` that computes the same function, if there is one."""
    parts = model.positions, model.norm, model.activation
    grouped = model.kv_heads not in (None, model.heads)
    if parts == ("learned", "layernorm", "gelu") and not grouped:
        return "GPT2LMHeadModel"
    if parts == ("rotary", "rmsnorm", "swiglu"):
        return "LlamaForCausalLM"
    return None


def config(model: ModelSettings, vocab_size: int, sequence_length: int, end_of_document: int) -> dict[str, Any]:
    """config.json for `architecture(model)`, which must not be none."""
    name = architecture(model)
    common = {
        "architectures": [name],
        "vocab_size": vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "bos_token_id": end_of_document,
        "eos_token_id": end_of_document,
        "dtype": "float32",
    }
    if name == "GPT2LMHeadModel":
        return common | {
            "model_type": "gpt2",
            "n_layer": model.layers,
            "n_embd": model.d_model,
            "n_head": model.heads,
            "n_inner": model.mlp_width,
            "n_positions": sequence_length,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": model.norm_epsilon,
            "embd_pdrop": model.dropout,
            "attn_pdrop": 0.0,
            "resid_pdrop": model.dropout,
        }
    assert name == "LlamaForCausalLM", name
    return common | {
        "model_type": "llama",
        "num_hidden_layers": model.layers,
        "hidden_size": model.d_model,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.d_model // model.heads,
        "intermediate_size": model.mlp_width,
        "max_position_embeddings": sequence_length,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": 0.0,
    }


def settings_of(config: Mapping[str, Any]) -> ModelSettings:
    """The `model` section that computes what `config` (a config.json) says. `ValueError` if none does."""
    kind = config.get("model_type")
    if kind == "gpt2" and config.get("activation_function", "gelu_new") in ("gelu_new", "gelu_pytorch_tanh"):
        return ModelSettings(
            layers=config["n_layer"],
            d_model=config["n_embd"],
            heads=config["n_head"],
            d_mlp=config.get("n_inner") or 4 * config["n_embd"],
            tied_embeddings=config.get("tie_word_embeddings", True),
            norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        )
    if kind == "llama" and config.get("hidden_act", "silu") == "silu":
        rope = config.get("rope_parameters") or {}
        head_width = config["hidden_size"] // config["num_attention_heads"]
        plain = rope.get("rope_type", "default") == "default" and config.get("head_dim") in (None, head_width)
        if plain and config.get("attention_bias", False) == config.get("mlp_bias", False):
            return ModelSettings(
                layers=config["num_hidden_layers"],
                d_model=config["hidden_size"],
                heads=config["num_attention_heads"],
                kv_heads=config.get("num_key_value_heads"),
                d_mlp=config["intermediate_size"],
                positions="rotary",
                norm="rmsnorm",
                activation="swiglu",
                tied_embeddings=config.get("tie_word_embeddings", False),
                bias=config.get("attention_bias", False),
                rope_theta=rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
                norm_epsilon=config.get("rms_norm_eps", 1e-6),
            )
    raise ValueError(f"no model section computes a '{kind}' with this config")


def to_transformers(weights: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    """State dict of `architecture(model)`. Where that class has a bias that the model lacks, it is zero."""
    if architecture(model) == "GPT2LMHeadModel":
        return _to_gpt2(weights, model)
    assert architecture(model) == "LlamaForCausalLM", model
    return _to_llama(weights, model)


def from_transformers(state: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    """Our weights from a state dict of `architecture(model)`, float32."""
    state = {name: np.asarray(array, np.float32) for name, array in state.items()}
    weights = _from_gpt2(state, model) if architecture(model) == "GPT2LMHeadModel" else _from_llama(state, model)
    return {name: np.ascontiguousarray(array) for name, array in weights.items()}


_GPT2_TOP = {"embedding": "wte.weight", "position_embedding": "wpe.weight"}
_GPT2_LAYERS = {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc",
                "mlp.down": "mlp.c_proj"}  # fmt: skip
_GPT2_NORMS = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}


def _gpt2_names(model: ModelSettings) -> list[tuple[str, str]]:
    """(ours, theirs) without the last part, which is kernel/scale/bias here and weight/bias there."""
    names = []
    for i in range(model.layers):
        names += [(f"blocks.{i}.{a}.kernel", f"transformer.h.{i}.{b}") for a, b in _GPT2_LAYERS.items()]
        names += [(f"blocks.{i}.{a}.scale", f"transformer.h.{i}.{b}") for a, b in _GPT2_NORMS.items()]
    return [*names, ("final_norm.scale", "transformer.ln_f")]


def _to_gpt2(weights: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    state = {f"transformer.{theirs}": weights[ours] for ours, theirs in _GPT2_TOP.items()}
    for ours, theirs in _gpt2_names(model):
        matrix = weights[ours]
        state[f"{theirs}.weight"] = matrix
        bias = f"{ours.rpartition('.')[0]}.bias"
        state[f"{theirs}.bias"] = weights.get(bias, np.zeros(matrix.shape[-1], np.float32))
    return state if model.tied_embeddings else state | {"lm_head.weight": weights["unembedding"]}


def _from_gpt2(state: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    weights = {ours: state[f"transformer.{theirs}"] for ours, theirs in _GPT2_TOP.items()}
    for ours, theirs in _gpt2_names(model):
        weights[ours] = state[f"{theirs}.weight"]
        weights[f"{ours.rpartition('.')[0]}.bias"] = state[f"{theirs}.bias"]
    return weights if model.tied_embeddings else weights | {"unembedding": state["lm_head.weight"]}


_LLAMA_PARTS = {"attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "attention.out": ("self_attn.o_proj",), "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
                "mlp.down": ("mlp.down_proj",)}  # fmt: skip
_LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


def _llama_cuts(part: str, model: ModelSettings) -> list[int]:
    """Where the columns of a fused kernel are cut."""
    width = model.d_model // model.heads
    key = (model.kv_heads or model.heads) * width
    return {"attention.qkv": [model.d_model, model.d_model + key], "mlp.up": [model.mlp_width]}.get(part, [])


def _to_llama(weights: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["final_norm.scale"]}
    for i in range(model.layers):
        for ours, theirs in _LLAMA_NORMS.items():
            state[f"model.layers.{i}.{theirs}.weight"] = weights[f"blocks.{i}.{ours}.scale"]
        for ours, parts in _LLAMA_PARTS.items():
            cuts = _llama_cuts(ours, model)
            kernels = np.split(weights[f"blocks.{i}.{ours}.kernel"], cuts, axis=1)
            for part, kernel in zip(parts, kernels, strict=True):
                state[f"model.layers.{i}.{part}.weight"] = np.ascontiguousarray(kernel.T)
            if model.bias:
                biases = np.split(weights[f"blocks.{i}.{ours}.bias"], cuts)
                state |= {
                    f"model.layers.{i}.{part}.bias": bias.copy() for part, bias in zip(parts, biases, strict=True)
                }
    return state if model.tied_embeddings else state | {"lm_head.weight": weights["unembedding"]}


def _from_llama(state: Arrays, model: ModelSettings) -> dict[str, np.ndarray]:
    weights = {"embedding": state["model.embed_tokens.weight"], "final_norm.scale": state["model.norm.weight"]}
    for i in range(model.layers):
        for ours, theirs in _LLAMA_NORMS.items():
            weights[f"blocks.{i}.{ours}.scale"] = state[f"model.layers.{i}.{theirs}.weight"]
        for ours, parts in _LLAMA_PARTS.items():
            kernels = [state[f"model.layers.{i}.{part}.weight"].T for part in parts]
            weights[f"blocks.{i}.{ours}.kernel"] = np.concatenate(kernels, axis=1)
            if model.bias:
                biases = [state[f"model.layers.{i}.{part}.bias"] for part in parts]
                weights[f"blocks.{i}.{ours}.bias"] = np.concatenate(biases)
    return weights if model.tied_embeddings else weights | {"unembedding": state["lm_head.weight"]}
