"""The `model` and `training` sections of pipelines.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tokenmill.config import Section, identity, numeric, operational
from tokenmill.training.sizes import SIZES

SizeName = Literal[
    "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "smollm-135m", "tinyllama-1.1b", "llama-3.2-1b"
]
Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]


class ModelSettings(Section):
    """A decoder-only transformer, by name or by dimensions."""

    size: SizeName | None = operational(None)
    """A published model, whose dimensions are taken for those that are not given here."""
    layers: int = identity(4, ge=1)
    d_model: int = identity(256, ge=8)
    heads: int = identity(4, ge=1)
    kv_heads: int | None = identity(None, ge=1)
    """Grouped-query attention: key and value heads; none means as many as `heads`."""
    d_mlp: int | None = identity(None, ge=8)
    """Width of the MLP; none means 4 × d_model."""
    positions: Literal["learned", "rotary"] = identity("learned")
    norm: Literal["layernorm", "rmsnorm"] = identity("layernorm")
    activation: Literal["gelu", "swiglu"] = identity("gelu")
    tied_embeddings: bool = identity(True)
    bias: bool = identity(True)
    dropout: float = identity(0.0, ge=0, lt=1)
    rope_theta: float = identity(10_000.0, gt=0)
    norm_epsilon: float = identity(1e-5, gt=0)

    @property
    def mlp_width(self) -> int:
        return self.d_mlp or 4 * self.d_model

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        size = SIZES.get(str(given.get("size"))) if isinstance(given, dict) else None
        return given if size is None else {**size, **given}

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSettings:
        if self.d_model % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide d_model {self.d_model}; choose a divisor")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads {self.heads}; choose a divisor")
        return self


class LengthSettings(Section):
    """How long a run is: exactly one of the three."""

    steps: int | None = identity(None, ge=1)
    tokens: int | None = identity(None, ge=1)
    epochs: float | None = identity(None, gt=0)

    @model_validator(mode="after")
    def _exactly_one(self) -> LengthSettings:
        given = [name for name in ("steps", "tokens", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of steps, tokens, epochs (given: {', '.join(given) or 'none'})")
        return self


class OptimizerSettings(Section):
    """AdamW; decay skips norms and biases."""

    learning_rate: float = identity(1e-3, gt=0)
    schedule: Literal["cosine", "linear", "wsd", "constant"] = identity("cosine")
    warmup_steps: int = identity(20, ge=0)
    final_fraction: float = identity(0.1, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""
    decay_fraction: float = identity(0.2, gt=0, le=1)
    """For `wsd`: the share of the steps spent decaying."""
    beta1: float = identity(0.9, ge=0, lt=1)
    beta2: float = identity(0.95, ge=0, lt=1)
    epsilon: float = identity(1e-8, gt=0)
    weight_decay: float = identity(0.1, ge=0)
    clip_norm: float | None = identity(1.0, gt=0)


class CheckpointSettings(Section):
    every_seconds: Annotated[float, Field(gt=0)] | Auto = operational(60.0)
    """Time between checkpoints; `auto` weighs save time against the interruption rate."""
    keep_last: int = operational(2, ge=1)
    keep_every_steps: int | None = operational(None, ge=1)


class EvaluationSettings(Section):
    every_steps: int | None = operational(None, ge=1)
    """Besides the first and the last."""
    max_rows: int = operational(256, ge=1)
    """Rows of the eval split that are looked at."""


class LossSpikeSettings(Section):
    """A loss far above the recent ones rolls the run back, and the batches that led there are skipped."""

    factor: float = identity(1.5, gt=1)
    """Times the median loss of the last 64 updates: more is a spike."""
    skip_batches: int = identity(8, ge=1)
    """Global batches that are skipped: the one of the spike, and those right before it."""
    max_rollbacks: int = identity(3, ge=0)
    """One spike more ends the run with a sentence."""


class TrainingSettings(Section):
    length: LengthSettings = Field()
    global_batch_size: int = identity(16, ge=1)
    """Sequences in an optimizer update."""
    seed: int = identity(0, ge=0, lt=2**31)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    z_loss: float = identity(0.0, ge=0)
    loss_spike: LossSpikeSettings | None = identity(None)
    """When to take updates back; none means never."""
    init_from: str | None = identity(None)
    """A promoted model, as `pipeline/number` or `pipeline/latest`, to start from; none means random weights."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = numeric("auto")
    xla: Literal["auto", "off", "on", "fuse"] = numeric("auto")
    micro_batch_size: Count | Auto = numeric("auto")
    devices: Count | Auto = numeric("auto")
    """Devices that the pipeline promises to each worker; training refuses to start on fewer. `auto`: all GPUs, else
    the CPU."""
    device_kind: Literal["auto", "gpu", "cpu"] = numeric("auto")
    """`gpu` refuses to start without one; `cpu` leaves GPUs alone, and may split the CPU into several `devices`."""
    deterministic: bool = numeric(False)
    """Bit-identical repetition on GPUs too, at some cost in speed. CPUs repeat in any case."""
    recompute: bool = numeric(False)
    """Compute each block's activations again in the backward pass instead of keeping them: less memory, about a third
    more time."""
    workers: int = numeric(1, ge=1)
    """Processes that train together, each with `devices`; with runtime `process` all on this machine."""
    threads: Count | Auto = numeric("auto")
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    profile_steps: int = operational(3, ge=0)
    """Updates in the profiler's window after warm-up; 0 means none."""
    log_every_seconds: float = operational(5.0, gt=0)
    max_seconds: float | None = operational(None, gt=0)
    """Training time over all attempts after which the run stops with a checkpoint."""
    done_by: str | None = operational(None, pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    """Local time of day, HH:MM, by which training stops with a checkpoint."""
    target_loss: float | None = operational(None, gt=0)
    stop_after_evaluations: int | None = operational(None, ge=1)
    """Stop once so many evaluations in a row brought no lower loss; needs evaluation.every_steps."""
    sample_prompts: tuple[str, ...] = operational(())
    """Beginnings that the trained model goes on with, for the report."""
    sample_tokens: int = operational(60, ge=1)

    @model_validator(mode="after")
    def _evaluations_happen(self) -> TrainingSettings:
        if self.stop_after_evaluations is not None and self.evaluation.every_steps is None:
            raise ValueError("stop_after_evaluations: needs evaluation.every_steps; give it a number of steps")
        return self

    @model_validator(mode="after")
    def _batches_divide(self) -> TrainingSettings:
        devices = 1 if self.devices == "auto" else self.devices
        rows, rest = divmod(self.global_batch_size, devices * self.workers)
        if rest:
            raise ValueError(
                f"devices: {devices} on each of {self.workers} workers do not divide global_batch_size "
                f"{self.global_batch_size}; choose divisors"
            )
        if self.micro_batch_size != "auto" and rows % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size: {self.micro_batch_size} does not divide the {rows} sequences of a device; "
                "choose a divisor"
            )
        return self
