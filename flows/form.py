"""What a person may change for one night in the form of Prefect's UI: the keys that are changed most, typed and with
the limits that pipelines.yaml has for them, and any other key as text.

The form refuses what breaks a limit; the flow refuses the rest before it starts anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from tokenmill.pipelines import Pipeline

Setting = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*=.+$")]
"""`dotted.key=value`, as after `--set`."""
_LENGTHS = ("steps", "tokens", "epochs")


def _of(key: str, title: str, description: str) -> Any:
    """A field of the form for a dotted key of a pipeline: its limits are the key's own."""
    section, _, name = key.rpartition(".")
    model: Any = Pipeline
    for part in section.split("."):
        model = model.model_fields[part].annotation
    field: FieldInfo = FieldInfo(default=None, title=title, description=description, json_schema_extra={"x-key": key})
    field.metadata = list(model.model_fields[name].metadata)
    return field


class Overrides(BaseModel):
    """Other values for this night; what is left out stays as it is in pipelines.yaml."""

    model_config = ConfigDict(extra="forbid")

    steps: int | None = _of("training.length.steps", "Steps", "Length of the run in optimizer updates.")
    tokens: int | None = _of("training.length.tokens", "Tokens", "Length of the run in tokens, instead of steps.")
    epochs: float | None = _of("training.length.epochs", "Epochs", "Length of the run in epochs, instead of steps.")
    learning_rate: float | None = _of(
        "training.optimizer.learning_rate", "Learning rate", "The highest that the schedule reaches."
    )
    global_batch_size: int | None = _of(
        "training.global_batch_size", "Global batch size", "Sequences in an optimizer update."
    )
    seed: int | None = _of("training.seed", "Seed", "Of initial weights, order and dropout.")
    precision: Literal["auto", "float32", "bfloat16", "float16"] | None = _of(
        "training.precision", "Precision", "Of the arithmetic; auto measures what the hardware is good at."
    )
    max_seconds: float | None = _of(
        "training.max_seconds", "Longest training time", "Seconds of training after which the run stops."
    )
    done_by: str | None = _of("training.done_by", "Done by", "Local time of day, HH:MM, by which training stops.")
    limit_documents: int | None = _of(
        "corpus.limit_documents", "Limit of documents", "Only so many documents, to try things out."
    )
    on_fail: Literal["stop", "train_on_last_good"] | None = _of(
        "checks.on_fail", "If the data is refused", "Stop, or train on the last good snapshot and say so."
    )

    def settings(self) -> list[str]:
        """As texts for `PipelineFile.load`. One length replaces the file's, of whatever kind that is."""
        given = self.model_dump(exclude_none=True)
        lengths = [name for name in _LENGTHS if name in given]
        others = [f"training.length.{name}=null" for name in _LENGTHS if lengths and name not in given]
        return [*(f"{form_keys()[name]}={_yaml(value)}" for name, value in given.items()), *others]


def form_keys() -> dict[str, str]:
    """The dotted key behind each field of the form."""
    extras = {name: field.json_schema_extra for name, field in Overrides.model_fields.items()}
    return {name: str(extra["x-key"]) for name, extra in extras.items() if isinstance(extra, dict)}


def in_the_file(pipelines: dict[str, Pipeline]) -> Iterator[tuple[str, str]]:
    """For each field of the form, what the pipelines have for it: `demo: 220, nightly: none`."""
    for name, key in form_keys().items():
        values = {title: reduce(getattr, key.split("."), pipeline) for title, pipeline in sorted(pipelines.items())}
        yield name, ", ".join(f"{title}: {'none' if value is None else value}" for title, value in values.items())


def _yaml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
