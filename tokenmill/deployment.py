"""The `schedule`, `runtime` and `image` sections of pipelines.yaml: when and where stages run. None changes the numbers
but the image."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator

from tokenmill.config import Section, numeric, operational
from tokenmill.cron import check_cron


class ScheduleSettings(Section):
    cron: str | None = operational(None)
    """Five cron fields; none means on demand only."""
    timezone: str = operational("UTC")
    """IANA name, such as Europe/Zurich."""
    when_running: Literal["skip", "wait"] = operational("skip")
    """What a start does that meets a running one of the same pipeline."""

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, cron: str | None) -> str | None:
        if cron is not None:
            check_cron(cron)
        return cron

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (OSError, ValueError, KeyError):
            raise ValueError(f"'{timezone}' is no time zone; write an IANA name such as Europe/Zurich") from None
        return timezone


Occasion = Literal["failure", "budget", "cost_regression", "low_utilisation"]


class NotifySettings(Section):
    """Who is told, through the automations that `tokenmill deploy` and `serve` create."""

    webhook: str | None = operational(None, pattern=r"^https?://")
    """URL that gets a JSON object with `subject` and `body` by POST; `${env:NAME}` keeps a secret out of the file."""
    email: str | None = operational(None, pattern=r"^mailtos?://")
    """A mail URL in Apprise's form, such as mailtos://user:${env:PASSWORD}@example.org?to=team@example.org."""
    occasions: tuple[Occasion, ...] = operational(("failure", "budget", "cost_regression", "low_utilisation"))
    """What is told. `low_utilisation` is the alarm of that name (`telemetry.low_utilisation_pct`)."""


SIZE = r"^[1-9][0-9]*[kmgKMG]?$"


class DockerSettings(Section):
    host_workspace: str | None = operational(None)
    """The workspace as the container engine's host sees it, where that differs."""
    memory: str | None = operational(None, pattern=SIZE)
    """Limit of a stage container, such as 8g."""
    cpus: float | None = operational(None, gt=0)
    pids: int = operational(4096, ge=64)
    """Most processes and threads of a stage container."""
    shm: str = operational("1g", pattern=SIZE)
    """Shared memory (/dev/shm) of a stage container."""
    tmp: str = operational("2g", pattern=SIZE)
    """Room for HOME and caches of a stage container: in memory, and gone at its end."""
    host_sources: dict[str, str] = operational({})
    """By name of a corpus source: its folder as the container engine's host sees it, where that differs."""


class RuntimeSettings(Section):
    kind: Literal["process", "docker", "kubernetes"] = operational("process")
    grace_seconds: float = operational(30.0, gt=0)
    """Between SIGTERM and SIGKILL."""
    max_attempts_without_progress: int = operational(3, ge=1)
    """Crashes in a row without a newly committed step that fail the run."""
    prepare_machines: int = operational(1, ge=1)
    """Stages that build token shards at the same time, each billed as a machine of its own; 1: all in one process."""
    prepare_batch_bytes: int = operational(2**29, ge=1)
    """Text in a batch that one of them builds: about two minutes of work of a core (docs/design/scale.md)."""
    lease_seconds: float = operational(15.0, gt=0)
    """Workspace on an object store: a machine that has been silent for so long has lost its run to the next one."""
    store_patience_seconds: float = operational(120.0, gt=0)
    """Workspace on an object store: how long one call is tried again before the store counts as away."""
    docker: DockerSettings = Field(default_factory=DockerSettings)


class ImageSettings(Section):
    reference: str | None = numeric(None)
    """Repository and tag of the engine image; `tokenmill image lock` pins it by digest."""
    registry: str | None = operational(None)
    """A mirror to pull from, such as registry.example.org/proxy; the digest stays what it is."""
    lock: str = operational("image.lock")
    """The file that pins the image, beside pipelines.yaml; written by `tokenmill image lock`."""
