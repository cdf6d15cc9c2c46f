"""1 TB of text and 64 workers on Spot, on paper: `python -m benchmarks.scale` prints docs/design/scale.md's tables.

A small simulation from measured rates, and from assumptions that are named as such. Machines are taken away at random
(exponential times, a fixed seed). In prepare each batch stands alone: a lost machine loses the batch in its hands. In
synchronous training one lost worker stops all: what was done since the last checkpoint is done again, after a new
machine has come, restored and compiled.
"""

from __future__ import annotations

import heapq
import random
import statistics
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scale:
    # The job.
    text_bytes: float = 1e12
    bytes_per_token: float = 4.2
    """Of English prose with a vocabulary of 32,000: an assumption (a dictionary measured here had 2.5)."""
    workers: int = 64
    gpus_per_worker: int = 8
    parameters: float = 1.4e9
    # Measured: docs/benchmarks/tokens.json and flow.json.
    prepare_bytes_per_core_second: float = 39.7e6 / 4.92 / 2
    batch_bytes: float = 2**29
    task_seconds: float = 12.5 / 400
    """Of Prefect's server and client, for each mapped task, on two cores."""
    record_bytes_per_token: float = 6.1
    # Documented or assumed.
    gpu_flops: float = 989e12
    """H100 SXM, dense bfloat16: NVIDIA's data sheet."""
    mfu: float = 0.40
    """An assumption: not measured on such machines."""
    cpu_cores: int = 16
    cpu_usd_per_hour: float = 0.27
    """A Spot machine of 16 cores: an example price."""
    gpu_usd_per_hour: float = 22.0
    """p5.48xlarge on Spot: the example price of pipelines.yaml."""
    interruptions_per_hour: float = 0.05
    """Of one machine."""
    new_machine_seconds: float = 240.0
    restart_seconds: float = 90.0
    """Import, restore, compile."""
    storage_bytes_per_second: float = 2e9
    """To the object store, by the chief alone, which writes the checkpoints."""

    @property
    def tokens(self) -> float:
        return self.text_bytes / self.bytes_per_token

    @property
    def checkpoint_bytes(self) -> float:
        return 12 * self.parameters

    @property
    def save_seconds(self) -> float:
        return self.checkpoint_bytes / self.storage_bytes_per_second

    @property
    def checkpoint_every_seconds(self) -> float:
        """Young's interval: the square root of twice the cost of a save times the mean time between interruptions."""
        if not self.interruptions_per_hour:
            return 3600.0
        return (2 * self.save_seconds * 3600 / (self.interruptions_per_hour * self.workers)) ** 0.5

    @property
    def tokens_per_second(self) -> float:
        return self.workers * self.gpus_per_worker * self.gpu_flops * self.mfu / (6 * self.parameters)


def prepare_hours(scale: Scale, seed: int) -> tuple[float, float]:
    """(hours on the clock, machine hours billed) of the build."""
    draw = random.Random(seed)
    work = scale.batch_bytes / (scale.prepare_bytes_per_core_second * scale.cpu_cores)
    batches = int(scale.text_bytes / scale.batch_bytes) + 1
    free = [(0.0, worker) for worker in range(scale.workers)]
    billed = 0.0
    while batches:
        now, worker = heapq.heappop(free)
        lost = draw.expovariate(scale.interruptions_per_hour / 3600) if scale.interruptions_per_hour else float("inf")
        if lost < work:
            heapq.heappush(free, (now + lost + scale.new_machine_seconds, worker))
            billed += lost
        else:
            heapq.heappush(free, (now + work, worker))
            billed += work
            batches -= 1
    return max(free)[0] / 3600, billed / 3600


def train_hours(scale: Scale, seed: int) -> tuple[float, float, int]:
    """(hours on the clock, machine hours billed, interruptions); the others wait, billed, for a new machine."""
    draw = random.Random(seed)
    rate = scale.interruptions_per_hour * scale.workers / 3600
    left = scale.tokens / scale.tokens_per_second
    clock, interruptions = scale.restart_seconds, 0
    period = scale.checkpoint_every_seconds + scale.save_seconds
    while left > 0:
        needed = left + scale.save_seconds * (left // scale.checkpoint_every_seconds)
        until = draw.expovariate(rate) if rate else float("inf")
        if until >= needed:
            clock += needed
            break
        left -= (until // period) * scale.checkpoint_every_seconds
        clock += until + scale.new_machine_seconds + scale.restart_seconds
        interruptions += 1
    return clock / 3600, clock / 3600 * scale.workers, interruptions


def main() -> None:
    base = Scale()
    batches = int(base.text_bytes / base.batch_bytes) + 1
    print(f"tokens {base.tokens / 1e9:,.0f} G; shards {base.tokens * base.record_bytes_per_token / 1e12:.2f} TB")
    print(f"checkpoint {base.checkpoint_bytes / 1e9:.1f} GB, {base.save_seconds:.1f} s to save")
    print(f"batches {batches:,}; Prefect's share {batches * base.task_seconds:.0f} s on the clock beside the work")
    print(f"training rate {base.tokens_per_second / 1e6:.1f} M tokens/s\n")
    print("| interruptions an hour, a machine | prepare h | prepare $ | train h | train $ | interruptions | goodput |")
    print("|---|---|---|---|---|---|---|")
    for rate in (0.0, 0.01, 0.05, 0.2):
        scale = replace(base, interruptions_per_hour=rate)
        prepared = [prepare_hours(scale, seed) for seed in range(20)]
        trained = [train_hours(scale, seed) for seed in range(200)]
        hours = statistics.mean(t[0] for t in trained)
        ideal = scale.tokens / scale.tokens_per_second / 3600
        print(
            f"| {rate:g} | {statistics.mean(p[0] for p in prepared):.2f} "
            f"| {statistics.mean(p[1] for p in prepared) * scale.cpu_usd_per_hour:,.0f} | {hours:.2f} "
            f"| {hours * scale.workers * scale.gpu_usd_per_hour:,.0f} "
            f"| {statistics.mean(t[2] for t in trained):.1f} | {100 * ideal / hours:.0f} % |"
        )


if __name__ == "__main__":
    main()
