"""A PyTorch loop with fused AdamW: python peer_torch.py ROWS.npy plain|compile bf16|float32."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from turns import BATCH, BETAS, CLIP_NORM, HEADS, LAYERS, LEARNING_RATE, VOCABULARY, WEIGHT_DECAY, WIDTH, Turns


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x)[:, :-1], self.tokens.weight)
        return functional.cross_entropy(logits.reshape(-1, VOCABULARY).float(), tokens[:, 1:].reshape(-1))


def main() -> None:
    rows = torch.from_numpy(np.load(sys.argv[1]).astype(np.int64))
    model = Gpt(rows.shape[1])
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, betas=BETAS, fused=True)
    loss_of = torch.compile(model) if sys.argv[2] == "compile" else model
    turns = Turns()
    at = 0
    while True:
        batch = rows[at : at + BATCH]
        at = (at + BATCH) % (len(rows) - BATCH)
        with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[3] == "bf16"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turns.step()


if __name__ == "__main__":
    main()
