"""Models by name: published dimensions, from each model's own config.json on the Hugging Face hub."""

from __future__ import annotations

from typing import Any

_LLAMA: dict[str, Any] = {"positions": "rotary", "norm": "rmsnorm", "activation": "swiglu", "bias": False}

SIZES: dict[str, dict[str, Any]] = {
    # Radford et al. 2019
    "gpt2-small": {"layers": 12, "d_model": 768, "heads": 12},
    "gpt2-medium": {"layers": 24, "d_model": 1024, "heads": 16},
    "gpt2-large": {"layers": 36, "d_model": 1280, "heads": 20},
    "gpt2-xl": {"layers": 48, "d_model": 1600, "heads": 25},
    # HuggingFaceTB/SmolLM-135M
    "smollm-135m": {**_LLAMA, "layers": 30, "d_model": 576, "heads": 9, "kv_heads": 3, "d_mlp": 1536},
    # TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T
    "tinyllama-1.1b": {
        **_LLAMA, "layers": 22, "d_model": 2048, "heads": 32, "kv_heads": 4, "d_mlp": 5632, "tied_embeddings": False,
    },
    # meta-llama/Llama-3.2-1B, without its scaling of rotary positions beyond 8,192 tokens
    "llama-3.2-1b": {
        **_LLAMA, "layers": 16, "d_model": 2048, "heads": 32, "kv_heads": 8, "d_mlp": 8192, "rope_theta": 500_000.0,
    },
}  # fmt: skip
