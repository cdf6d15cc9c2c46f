"""The trained model as a folder that `transformers` loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tokenmill.training import interchange
from tokenmill.training.settings import ModelSettings
from tokenmill.workspace import publish_folder, read_json, write_json

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def architecture_name(model: ModelSettings) -> str:
    return interchange.architecture(model) or "tokenmill"


def export_model(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    model: ModelSettings,
    *,
    vocab_size: int,
    sequence_length: int,
    end_of_document: int,
    tokenizer_folder: Path | None,
) -> None:
    """Publish model.safetensors, config.json and the tokenizer's files at `folder`, in place of what is there.

    A model that no class of `transformers` computes is saved under our own names, its config.json naming our section.
    """
    if folder.exists():
        shutil.rmtree(folder)
    with publish_folder(folder) as beside:
        if interchange.architecture(model) is None:
            state = dict(weights)
            config = {"model_type": "tokenmill", "model": model.model_dump(mode="json"), "vocab_size": vocab_size,
                      "sequence_length": sequence_length, "eos_token_id": end_of_document}  # fmt: skip
        else:
            state = interchange.to_transformers(weights, model)
            config = interchange.config(model, vocab_size, sequence_length, end_of_document)
        arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
        save_file(arrays, beside / "model.safetensors", metadata={"format": "pt"})
        write_json(beside / "config.json", config)
        for name in _TOKENIZER_FILES:
            if tokenizer_folder is not None and (tokenizer_folder / name).is_file():
                shutil.copyfile(tokenizer_folder / name, beside / name)


def read_model(folder: Path, model: ModelSettings) -> dict[str, np.ndarray]:
    """The weights of a folder that `export_model` or `transformers` wrote, for a decoder of `model`.

    `ValueError` or `KeyError` if the folder holds another kind of model; shapes are not looked at.
    """
    config = read_json(folder / "config.json")
    try:
        state = load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise ValueError(f"model.safetensors cannot be read: {error}") from None
    if config.get("model_type") == "tokenmill":
        return state
    if config.get("architectures") != [interchange.architecture(model)]:
        raise ValueError(f"it is a {config.get('architectures')}, not a {architecture_name(model)}")
    return interchange.from_transformers(state, model)
