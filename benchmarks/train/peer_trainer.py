"""The Trainer of Hugging Face's transformers, python peer_trainer.py ROWS.npy bf16|float32."""

import sys
import tempfile
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from turns import BATCH, BETAS, CLIP_NORM, HEADS, LAYERS, LEARNING_RATE, VOCABULARY, WEIGHT_DECAY, WIDTH, Turns


class Steps(TrainerCallback):
    def __init__(self) -> None:
        self.turns = Turns()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.turns.step()


def main() -> None:
    rows = np.load(sys.argv[1]).astype(np.int64)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=rows.shape[1], n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    data: Any = [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, max_steps=10**6, learning_rate=LEARNING_RATE,
            bf16=sys.argv[2] == "bf16",
            optim="adamw_torch_fused", adam_beta1=BETAS[0], adam_beta2=BETAS[1], weight_decay=WEIGHT_DECAY,
            max_grad_norm=CLIP_NORM, use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True,
        )  # fmt: skip
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[Steps()]).train()


if __name__ == "__main__":
    main()
