"""pipelines.yaml → frozen models, with all errors at once.

A file holds `defaults` and named `pipelines`; a pipeline is the defaults with its own keys laid over them (mappings
merge, everything else replaces):

    defaults:
      workspace: ./workspace
    pipelines:
      demo:
        corpus: {sources: [{name: stdlib, root: "${python:stdlib}", include: ["**/*.py"]}]}
        training: {length: {epochs: 1}}
        cost: unpriced
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError

from tokenmill.canonical import fingerprint
from tokenmill.config import Role, Section, operational, values_with_role
from tokenmill.corpus.settings import CorpusSettings
from tokenmill.cost.settings import CostSettings
from tokenmill.deployment import ImageSettings, NotifySettings, RuntimeSettings, ScheduleSettings
from tokenmill.errors import UserError
from tokenmill.mistakes import explain
from tokenmill.quality.settings import ChecksSettings
from tokenmill.telemetry.settings import TelemetrySettings
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.training.settings import ModelSettings, TrainingSettings

HINTS = {"cost": "give a price (usd_per_hour, or machine_type) or the word 'unpriced'"}
_REFERENCE = re.compile(r"\$\{([a-z]+):([^}]*)\}")


class Pipeline(Section):
    """One named pipeline, complete and checked."""

    workspace: str = operational("./workspace")
    """Folder or URL (s3://, gs://) for everything that must survive a machine; relative to pipelines.yaml."""
    stage_folder: str | None = operational(None)
    """Where a workspace on s3:// or gs:// is worked on here; by default a folder in ~/.cache/tokenmill."""
    corpus: CorpusSettings = Field()
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    tokens: TokensSettings = Field(default_factory=TokensSettings)
    checks: ChecksSettings = Field(default_factory=ChecksSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    training: TrainingSettings = Field()
    cost: CostSettings | Literal["unpriced"] = Field()
    """A price, or the word `unpriced`: then reports show seconds and tokens, no dollars."""
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    notify: NotifySettings = Field(default_factory=NotifySettings)
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)
    image: ImageSettings = Field(default_factory=ImageSettings)
    _tokenizer_as_written: str | None = PrivateAttr(None)
    """`tokenizer.source` as it stands in the file, where that is a path: moving the file makes no other run."""

    @property
    def is_remote(self) -> bool:
        """Whether the workspace is on an object store."""
        return "://" in self.workspace

    @property
    def local_workspace(self) -> Path:
        """The workspace on this machine's disk: itself, or the stage folder of one on an object store."""
        if not self.is_remote:
            return Path(self.workspace)
        if self.stage_folder is not None:
            return Path(self.stage_folder)
        return Path.home() / ".cache" / "tokenmill" / fingerprint(self.workspace.rstrip("/"), length=16)

    def identity(self) -> dict[str, Any]:
        """The fields that make a run what it is (see `tokenmill.config.Role`), nested as in the file."""
        fields = values_with_role(self, Role.IDENTITY)
        if self._tokenizer_as_written is not None:
            fields["tokenizer"]["source"] = self._tokenizer_as_written
        return fields

    def identity_fingerprint(self) -> str:
        return fingerprint(self.identity())

    def numeric_fields(self) -> dict[str, Any]:
        return values_with_role(self, Role.NUMERIC)


class _File(Section):
    """The whole of pipelines.yaml, for its JSON Schema."""

    defaults: dict[str, Any] = operational({})
    pipelines: dict[str, Pipeline] = Field()


@dataclass(frozen=True)
class PipelineFile:
    """A parsed pipelines.yaml; `load` gives one checked pipeline of it."""

    path: Path
    defaults: Mapping[str, Any]
    pipelines: Mapping[str, Mapping[str, Any]]

    def load(self, name: str, overrides: Sequence[str] = ()) -> Pipeline:
        """The pipeline `name` with `overrides` (``dotted.key=YAML value``) laid over it.

        Raises `UserError` naming every mistake at once.
        """
        if name not in self.pipelines:
            known = ", ".join(sorted(self.pipelines)) or "none"
            raise UserError(f"pipeline '{name}' is not in {self.path.name}; known pipelines: {known}")
        raw = _merge(self.defaults, self.pipelines[name])
        for override in overrides:
            raw = _merge(raw, _parse_override(override))
        errors: list[str] = []
        resolved = _resolve(raw, "", errors)
        pipeline = None
        try:
            pipeline = Pipeline.model_validate(resolved)
        except ValidationError as error:
            errors += explain(error, Pipeline, HINTS)
        if errors or pipeline is None:
            lines = "".join(f"\n  {line}" for line in errors)
            raise UserError(f"pipeline '{name}' in {self.path.name} has {_plural(len(errors), 'mistake')}:{lines}")
        return self._with_whole_paths(pipeline)

    def _with_whole_paths(self, pipeline: Pipeline) -> Pipeline:
        """Every relative path of the file starts beside it, wherever tokenmill is started."""
        changes: dict[str, Any] = {}
        if "://" not in pipeline.workspace:
            changes["workspace"] = self._beside("workspace", pipeline.workspace)
        if pipeline.stage_folder is not None:
            changes["stage_folder"] = self._beside("stage_folder", pipeline.stage_folder)
        if pipeline.checks.suite is not None:
            suite = self._beside("checks.suite", pipeline.checks.suite)
            changes["checks"] = pipeline.checks.model_copy(update={"suite": suite})
        changes["image"] = pipeline.image.model_copy(update={"lock": self._beside("image.lock", pipeline.image.lock)})
        sources = tuple(
            source
            if "://" in source.root
            else source.model_copy(update={"root": self._beside(f"corpus.sources.{number}.root", source.root)})
            for number, source in enumerate(pipeline.corpus.sources)
        )
        changes["corpus"] = pipeline.corpus.model_copy(update={"sources": sources})
        written = pipeline.tokenizer.source
        if written is not None and self._is_folder(written):
            source = self._beside("tokenizer.source", written)
            changes["tokenizer"] = pipeline.tokenizer.model_copy(update={"source": source})
        whole = pipeline.model_copy(update=changes)
        if "tokenizer" in changes:
            whole._tokenizer_as_written = written
        return whole

    def _is_folder(self, source: str) -> bool:
        """Whether `tokenizer.source` means a folder, and not a hub name (`name` or `owner/name`)."""
        looks_so = source.startswith((".", "/", "~")) or source.count("/") > 1
        return looks_so or Path(self._beside("tokenizer.source", source)).is_dir()

    def _beside(self, key: str, value: str) -> str:
        """A path of the file as an absolute one: relative ones start beside the file."""
        try:
            return str((self.path.parent / Path(value).expanduser()).resolve())
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"{key}: {value!r} cannot be a path ({error}); write another one") from None


def read_pipeline_file(path: Path) -> PipelineFile:
    """Raises `UserError` if the file is missing, not YAML, or not of the documented shape."""
    try:
        raw = _parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; start tokenmill beside a pipelines.yaml or name one with --file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{path.name} is nested too deep, or an alias in it contains itself") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("pipelines"), dict):
        raise UserError(f"{path.name} needs a mapping `pipelines` of named pipelines at its top")
    unknown = sorted(str(key) for key in raw if key not in ("defaults", "pipelines"))
    if unknown:
        raise UserError(f"{path.name} has the unknown top-level key '{unknown[0]}'; known: defaults, pipelines")
    for name, body in [("defaults", raw.get("defaults") or {}), *raw["pipelines"].items()]:
        if not isinstance(body, dict):
            raise UserError(f"{path.name}: '{name}' must be a mapping, got {body!r}")
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise UserError(
                f"{path.name}: pipeline name {name!r} must be a text of lower-case letters, digits, '-' and '_'"
            )
    return PipelineFile(path.resolve(), raw.get("defaults") or {}, raw["pipelines"])


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: PyYAML would keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key '{key.value}' stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str) -> Any:
    """Raises `yaml.YAMLError`, or `RecursionError` if a value contains itself or is nested beyond all use."""
    value = yaml.load(text, Loader=_Loader)
    _walk(value)
    return value


def _walk(value: Any) -> None:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _walk(item)


def json_schema() -> dict[str, Any]:
    """JSON Schema of pipelines.yaml, for editors. In a pipeline nothing is required: defaults may supply it."""
    schema = _File.model_json_schema()
    definitions = schema["$defs"]
    for definition in definitions.values():
        for prop in definition.get("properties", {}).values():
            prop.pop("x-role", None)
    definitions["Pipeline"].pop("required", None)
    schema["properties"]["defaults"] = {"$ref": "#/$defs/Pipeline", "description": "Laid under every pipeline."}
    schema["title"] = "tokenmill pipelines.yaml"
    return schema


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _parse_override(override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"--set {override!r} must look like dotted.key=value")
    try:
        value = _parse_yaml(text)
    except (yaml.YAMLError, RecursionError):
        raise UserError(f"--set {override!r}: the value is not valid YAML") from None
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _resolve(value: Any, key: str, errors: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _resolve(item, f"{key}.{name}" if key else str(name), errors) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, f"{key}.{index}", errors) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "python" and name == "stdlib":
            return sysconfig.get_path("stdlib")
        if kind == "env" and name in os.environ:
            return os.environ[name]
        reason = f"environment variable {name} is not set" if kind == "env" else "known: ${python:stdlib}, ${env:NAME}"
        errors.append(f"{key}: cannot resolve '{match.group()}': {reason}")
        return match.group()

    return _REFERENCE.sub(look_up, value)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
