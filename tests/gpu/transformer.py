#!/usr/bin/env python3
"""Trains a small transformer with PyTorch, AdamW and mixed precision, from fixed seeds.

    tests/gpu/transformer.py [ITERATIONS [LAYERS [BATCH]]]     (default: 60 6 8)
    oversub run --memory-budget 3008MiB -- tests/gpu/transformer.py

Prints the loss and the time of every iteration, and at the end the median time of the later half,
the last loss and the peak of memory in use. Losses of two runs differ in the fifth digit, since
PyTorch's kernels add in any order; under oversub by no more. Needs python3 with torch and a GPU.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, TOKENS, WORDS, HEADS = 1024, 512, 32000, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        heads = self.attention(self.before_attention(x))
        heads = heads.view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


def main():
    numbers = [int(word) for word in sys.argv[1:]]
    iterations, layers, batch = numbers + [60, 6, 8][len(numbers):]
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        *(Block() for _ in range(layers)),
        nn.Linear(WIDTH, WORDS, bias=False),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    times = []
    for iteration in range(iterations):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        words = torch.randint(0, WORDS, (batch, TOKENS + 1), generator=generator).cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, WORDS), words[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        last = loss.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        print(f"iteration {iteration} loss {last:.6f} {times[-1] * 1e3:.1f} ms", flush=True)
    later = sorted(times[iterations // 2:])
    print(f"median_ms {later[len(later) // 2] * 1e3:.2f} first_ms {times[0] * 1e3:.1f} "
          f"last_loss {last:.6f} peak_bytes {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
