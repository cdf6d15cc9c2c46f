"""pipelines.yaml → models: merging, references, overrides, and every mistake said at once in words a person can use."""

from __future__ import annotations

import json
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.config import Role, Section, identity, numeric, operational, unmarked_leaves, values_with_role
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, PipelineFile, json_schema, read_pipeline_file

ROOT = Path(__file__).parents[2]

MINIMAL: dict[str, Any] = {
    "corpus": {"sources": [{"name": "notes", "root": "/data/notes"}]},
    "training": {"length": {"steps": 10}},
    "cost": "unpriced",
}


def write(tmp_path: Path, pipelines: Any, defaults: Any = None) -> PipelineFile:
    path = tmp_path / "pipelines.yaml"
    content = {"pipelines": pipelines} | ({"defaults": defaults} if defaults is not None else {})
    path.write_text(yaml.safe_dump(content))
    return read_pipeline_file(path)


def mistakes(file: PipelineFile, *overrides: str, name: str = "p") -> list[str]:
    with pytest.raises(UserError) as caught:
        file.load(name, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_defaults_merge_and_everything_but_mappings_replaces(tmp_path: Path) -> None:
    defaults = {
        "training": {"seed": 3, "length": {"steps": 10}},
        "corpus": {"sources": [{"name": "a", "root": "/a"}, {"name": "b", "root": "/b"}]},
        "cost": "unpriced",
    }
    own = {"training": {"global_batch_size": 4}, "corpus": {"sources": [{"name": "c", "root": "/c"}]}}
    pipeline = write(tmp_path, {"p": own}, defaults).load("p")
    assert (pipeline.training.seed, pipeline.training.global_batch_size) == (3, 4)
    assert [source.name for source in pipeline.corpus.sources] == ["c"]


def test_references_are_resolved_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TM_DATA", "/mnt/data")
    sources = [{"name": "a", "root": "${python:stdlib}"}, {"name": "b", "root": "${env:TM_DATA}/b"}]
    pipeline = write(tmp_path, {"p": MINIMAL | {"corpus": {"sources": sources}}}).load("p")
    assert [s.root for s in pipeline.corpus.sources] == [sysconfig.get_path("stdlib"), "/mnt/data/b"]


def test_a_reference_that_cannot_be_resolved_names_its_key(tmp_path: Path) -> None:
    file = write(tmp_path, {"p": MINIMAL | {"workspace": "${env:TM_NOT_SET}"}})
    assert mistakes(file) == [
        "workspace: cannot resolve '${env:TM_NOT_SET}': environment variable TM_NOT_SET is not set"
    ]


def test_the_workspace_is_relative_to_the_file(tmp_path: Path) -> None:
    assert write(tmp_path, {"p": MINIMAL}).load("p").workspace == str(tmp_path / "workspace")
    remote = write(tmp_path, {"p": MINIMAL | {"workspace": "s3://bucket/tm"}}).load("p")
    assert remote.workspace == "s3://bucket/tm"


@pytest.mark.parametrize("value", ["\0", "~nobody-of-this-name/w"])
@pytest.mark.parametrize("key", ["workspace", "checks.suite"])
def test_what_cannot_be_a_path_is_refused(tmp_path: Path, key: str, value: str) -> None:
    file = write(tmp_path, {"p": MINIMAL})
    with pytest.raises(UserError, match=f"{key}: .* cannot be a path"):
        file.load("p", [f"{key}={json.dumps(value)}"])


def test_overrides_reach_any_depth_and_are_yaml(tmp_path: Path) -> None:
    file = write(tmp_path, {"p": MINIMAL})
    pipeline = file.load("p", ["training.length={tokens: 1000, steps: null}", "cost={usd_per_hour: 1.85}"])
    assert pipeline.training.length.tokens == 1000
    assert not isinstance(pipeline.cost, str)
    assert str(pipeline.cost.usd_per_hour) == "1.85"


def test_all_mistakes_are_reported_at_once_with_key_value_and_fix(tmp_path: Path) -> None:
    file = write(tmp_path, {"p": MINIMAL | {"chekcs": {}}})
    found = mistakes(
        file,
        "training.global_batch=3",
        "training.micro_batch_size=many",
        "training.optimizer.beta1=2",
        "model={heads: 7, d_model: 256}",
        "corpus.sources=[]",
    )
    assert found == [
        "corpus.sources: should be at least 1 long (got [])",
        "model: heads: 7 does not divide d_model 256; choose a divisor",
        "training.optimizer.beta1: should be less than 1 (got 2)",
        "training.micro_batch_size: should be a valid integer or 'auto' (got 'many')",
        "training.global_batch: unknown key; did you mean 'global_batch_size'?",
        "chekcs: unknown key; did you mean 'checks'?",
    ]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ("free", "cost: got 'free'; give a price (usd_per_hour, or machine_type) or the word 'unpriced'"),
        ({"markt": "spot"}, "cost.markt: unknown key; did you mean 'market'?"),
        ({"usd_per_hour": -1}, "cost.usd_per_hour: should be greater than or equal to 0 (got -1)"),
    ],
)
def test_mistakes_in_cost_are_told_once(tmp_path: Path, cost: Any, expected: str) -> None:
    assert mistakes(write(tmp_path, {"p": MINIMAL | {"cost": cost}})) == [expected]


def test_what_is_required_and_missing_is_named(tmp_path: Path) -> None:
    assert mistakes(write(tmp_path, {"p": {}})) == [
        "corpus: required, and missing",
        "training: required, and missing",
        "cost: required, and missing; give a price (usd_per_hour, or machine_type) or the word 'unpriced'",
    ]


def test_an_unknown_pipeline_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'nightli' is not in pipelines.yaml; known pipelines: demo, nightly"):
        write(tmp_path, {"nightly": MINIMAL, "demo": MINIMAL}).load("nightli")


@pytest.mark.parametrize("override", ["training", "=3", "training..seed=1", "training.seed=[1"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(UserError, match="--set"):
        write(tmp_path, {"p": MINIMAL}).load("p", [override])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pipelines: [", "not valid YAML"),
        ("- a", "needs a mapping `pipelines`"),
        ("pipelines: {p: 3}", "'p' must be a mapping, got 3"),
        ("pipelines: {}\nother: {}", "unknown top-level key 'other'"),
        ("pipelines: {'a/b': {}}", "pipeline name 'a/b'"),
        ("defaults: 3\npipelines: {}", "'defaults' must be a mapping, got 3"),
    ],
)
def test_a_file_of_another_shape_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_pipeline_file(path)


def test_a_missing_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_pipeline_file(tmp_path / "pipelines.yaml")


def test_every_field_has_a_role() -> None:
    assert list(unmarked_leaves(Pipeline)) == []


def test_values_with_role_keeps_the_nesting() -> None:
    class Inner(Section):
        a: int = identity(1)
        b: int = numeric(2)

    class Outer(Section):
        one: Inner = Inner()
        many: tuple[Inner, ...] = (Inner(), Inner(a=5))
        price: float = operational(3.0)

    assert values_with_role(Outer(), Role.IDENTITY) == {"one": {"a": 1}, "many": [{"a": 1}, {"a": 5}]}
    assert values_with_role(Outer(), Role.NUMERIC) == {"one": {"b": 2}, "many": [{"b": 2}, {"b": 2}]}
    assert values_with_role(Outer(), Role.OPERATIONAL) == {"price": 3.0}


SAME_RUN = [
    "cost={usd_per_hour: 9, market: spot}",
    "schedule.cron=0 3 * * *",
    "runtime.kind=docker",
    "training.checkpoint.every_seconds=5",
    "training.micro_batch_size=2",
    "training.precision=float32",
    "tokens.processes=4",
    "workspace=/elsewhere",
]
OTHER_RUN = [
    "training.seed=1",
    "training.global_batch_size=8",
    "model.layers=5",
    "tokens.sequence_length=64",
    "training.length={steps: 11}",
    "training.optimizer.learning_rate=0.1",
    "tokenizer.vocab_size=500",
    "corpus.limit_documents=7",
]


@pytest.mark.parametrize("override", SAME_RUN + OTHER_RUN)
def test_only_identity_fields_make_another_run(tmp_path: Path, override: str) -> None:
    file = write(tmp_path, {"p": MINIMAL})
    same = file.load("p").identity_fingerprint() == file.load("p", [override]).identity_fingerprint()
    assert same == (override in SAME_RUN)


def test_moving_the_corpus_is_not_another_run(tmp_path: Path) -> None:
    elsewhere = MINIMAL | {"corpus": {"sources": [{"name": "notes", "root": "/other"}]}}
    file = write(tmp_path, {"here": MINIMAL, "there": elsewhere})
    assert file.load("here").identity_fingerprint() == file.load("there").identity_fingerprint()


def test_a_pipeline_survives_json(tmp_path: Path) -> None:
    pipeline = write(tmp_path, {"p": MINIMAL | {"cost": {"usd_per_hour": "0.10"}}}).load("p")
    assert Pipeline.model_validate(json.loads(pipeline.model_dump_json())) == pipeline


def test_the_committed_schema_is_the_models_schema() -> None:
    committed = json.loads((ROOT / "pipelines.schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema(), "run `make schema`"


def test_the_shipped_pipelines_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_WORKSPACE", "/w")
    monkeypatch.setenv("TOKENMILL_CORPUS", "/c")
    file = read_pipeline_file(ROOT / "pipelines.yaml")
    assert set(file.pipelines) == {"demo", "nightly"}
    for name in file.pipelines:
        assert isinstance(file.load(name), Pipeline)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=12,
    )
)
def test_any_content_loads_or_is_refused_as_a_user_error(value: Any) -> None:
    for key in ("corpus", "training", "cost", "model", "tokens", "schedule", "workspace"):
        file = PipelineFile(Path("/nowhere/pipelines.yaml"), {}, {"p": MINIMAL | {key: value}})
        with suppress(UserError):  # anything else that escapes fails the test
            file.load("p")


@pytest.mark.parametrize("cron", ["* * * * *", "*/5 0-6,22 1 jan,Feb mon-fri", "0 22 * * 7", "30 2 1-31/2 * sun"])
def test_cron_schedules_are_taken(tmp_path: Path, cron: str) -> None:
    assert write(tmp_path, {"p": MINIMAL | {"schedule": {"cron": cron}}}).load("p").schedule.cron == cron


def test_relative_paths_start_beside_the_file_and_moving_it_is_not_another_run(tmp_path: Path) -> None:
    body = MINIMAL | {"tokenizer": {"source": "./tok"}, "corpus": {"sources": [{"name": "notes", "root": "notes"}]}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here, there = write(tmp_path / "a", {"p": body}).load("p"), write(tmp_path / "b", {"p": body}).load("p")
    assert here.corpus.sources[0].root == str(tmp_path / "a" / "notes")
    assert here.tokenizer.source == str(tmp_path / "a" / "tok")
    assert here.identity() == there.identity()
    hub = write(tmp_path, {"p": MINIMAL | {"tokenizer": {"source": "owner/name"}}}).load("p")
    assert hub.tokenizer.source == "owner/name"


def test_an_own_suite_lies_beside_the_pipeline_file(tmp_path: Path) -> None:
    body = {
        "corpus": {"sources": [{"name": "a", "root": "/x"}]},
        "training": {"length": {"steps": 1}},
        "cost": "unpriced",
    }
    pipelines = {"p": body | {"checks": {"suite": "checks/own.py"}}}
    (tmp_path / "pipelines.yaml").write_text(json.dumps({"pipelines": pipelines}))
    pipeline = read_pipeline_file(tmp_path / "pipelines.yaml").load("p")
    assert pipeline.checks.suite == str(tmp_path / "checks" / "own.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1: 2\nfoo: 3\npipelines: {p: {}}\n", "unknown top-level key '1'"),
        ("pipelines: {1: {}, p: {}}\n", "pipeline name 1 must be a text"),
        ("pipelines: {p: &a {x: *a}}\n", "an alias in it contains itself"),
        ("pipelines: {p: {a: " + "[" * 3000 + "]" * 3000 + "}}\n", "nested too deep"),
        ("pipelines: {p: {cost: unpriced, cost: {usd_per_hour: 1}}}\n", "the key 'cost' stands twice"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_pipeline_file(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "training.optimizer.learning_rate=.inf",
            "training.optimizer.learning_rate: should be a finite number (got inf)",
        ),
        ("corpus={sources: [{name: a, root: /a}, {name: a, root: /b}]}", "corpus.sources: two sources are named 'a'"),
        ("model.layers=true", "model.layers: got true, where a number or a text belongs"),
        ("training.devices=9", "training: devices: 9 on each of 1 workers do not divide global_batch_size 16"),
        ("training.micro_batch_size=3", "training: micro_batch_size: 3 does not divide the 16 sequences of a device"),
        (
            "training.checkpoint.every_seconds=0",
            "training.checkpoint.every_seconds: should be greater than 0 or 'auto'",
        ),
        ("training.threads=0", "training.threads: should be greater than or equal to 1 or 'auto' (got 0)"),
        ("schedule.cron=0 22 * *", "schedule.cron: '0 22 * *' has 4 fields; cron needs five, such as '0 22 * * *'"),
        ("schedule.cron=0 25 * * *", "schedule.cron: '25' in '0 25 * * *' is no hour; write 0 to 23, a range, or *"),
        ("schedule.cron='0 2 * * mon-freitag'", "schedule.cron: 'mon-freitag' in '0 2 * * mon-freitag' is no day of"),
        ("schedule.timezone=Europe/Zuerich", "schedule.timezone: 'Europe/Zuerich' is no time zone; write an IANA name"),
    ],
)
def test_values_that_nothing_could_be_made_of_are_mistakes(tmp_path: Path, override: str, said: str) -> None:
    assert [line[: len(said)] for line in mistakes(write(tmp_path, {"p": MINIMAL}), override)] == [said]


def test_an_override_that_contains_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not valid YAML"):
        write(tmp_path, {"p": MINIMAL}).load("p", ["checks=&a [*a]"])
