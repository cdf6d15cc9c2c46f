"""What PyTorch and `transformers` say: runs in an environment of its own, where TensorFlow is not.

python transformers_judge.py make FOLDER    random models: config.json, model.safetensors, expected.npz each
python transformers_judge.py load FOLDER    logits.npz for each sub-folder that holds an exported model
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

VOCAB, LENGTH, ROWS, STEPS = 101, 24, 6, 3
GPT2 = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1}  # fmt: skip
LLAMA = {"vocab_size": VOCAB, "max_position_embeddings": LENGTH, "hidden_size": 32, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.1}  # fmt: skip
CASES = {
    "gpt2": GPT2Config(**GPT2),
    "gpt2-untied": GPT2Config(**GPT2, tie_word_embeddings=False, n_inner=72),
    "llama": LlamaConfig(**LLAMA, num_key_value_heads=4),
    "llama-grouped-tied": LlamaConfig(
        **LLAMA,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
}
OPTIMIZER = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-5}
"""A bias of the keys has no effect: its gradient is rounding alone, which a smaller epsilon would blow up to a step."""
DECAY, CLIP = 0.1, 1.0


def make(root: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, VOCAB, (STEPS, ROWS, LENGTH))
    for name, config in CASES.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases start at 1 and 0, which would hide mistakes
                    parameter.add_(0.1 * torch.randn(parameter.shape))
        folder = root / name
        folder.mkdir(parents=True)
        config.save_pretrained(folder)
        save_file(arrays(model), folder / "model.safetensors")
        expected = {"tokens": tokens, "logits": logits(model, tokens[0])}
        expected["losses"], expected["norms"] = train(model, torch.tensor(tokens))
        expected |= {f"after.{key}": value for key, value in arrays(model).items()}
        np.savez(folder / "expected.npz", **expected)


def train(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, **OPTIMIZER)
    losses, norms = [], []
    for rows in tokens:
        optimizer.zero_grad()
        loss = model(rows, labels=rows).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        optimizer.step()
        losses.append(float(loss))
    return np.array(losses), np.array(norms)


def arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    named = dict(model.named_parameters())  # tied tables once
    return {name: parameter.detach().numpy().copy() for name, parameter in named.items()}


def logits(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.float().numpy()


def load(root: Path) -> None:
    for folder in sorted(path for path in root.iterdir() if (path / "config.json").is_file()):
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        problems = {key: sorted(value) for key, value in report.items() if value}
        assert not problems, (folder.name, problems)
        np.save(folder / "logits.npy", logits(model.float().eval(), np.load(folder / "tokens.npy")))


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](Path(sys.argv[2]))
