"""The form in Prefect's UI: typed, described, limited; what is wrong is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.form import Overrides
from tests.orchestration.test_commands import pipelines_file
from tokenmill.errors import UserError


def test_overrides_become_settings_of_the_pipeline(tmp_path: Path) -> None:
    file = pipelines_file(tmp_path)
    overrides = Overrides(epochs=0.5, learning_rate=0.01, done_by="07:00", on_fail="train_on_last_good")
    pipeline = file.load("small", overrides.settings())
    assert (pipeline.training.length.epochs, pipeline.training.length.steps) == (0.5, None)
    assert pipeline.training.optimizer.learning_rate == 0.01
    assert (pipeline.training.done_by, pipeline.checks.on_fail) == ("07:00", "train_on_last_good")
    assert file.load("small", Overrides().settings()) == file.load("small")


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"learning_rate": -1}, {"seed": 2**31}, {"done_by": "25:00"}, {"precision": "int8"}, {"stepz": 1}],
)
def test_wrong_overrides_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Overrides.model_validate(wrong)


def test_two_lengths_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give exactly one of steps, tokens, epochs"):
        pipelines_file(tmp_path).load("small", Overrides(steps=1, epochs=1).settings())


@pytest.mark.integration
@pytest.mark.usefixtures("prefect_server")
def test_the_server_refuses_what_the_form_would(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    from flows.deployments import ON_DEMAND_NAME, deploy

    ids = deploy(pipelines_file(tmp_path))
    with get_client(sync_client=True) as client:
        schema = client.read_deployment(ids[ON_DEMAND_NAME]).parameter_openapi_schema
        assert schema["properties"]["pipeline"]["enum"] == ["small"]
        steps = schema["definitions"]["Overrides"]["properties"]["steps"]
        assert steps["description"] == "Length of the run in optimizer updates. In the file: small: 10."
        assert "pattern" in str(schema["properties"]["settings"])
        for wrong in (
            {"pipeline": "other"},
            {"pipeline": "small", "budget_usd": 0},
            {"pipeline": "small", "market": "black"},
            {"pipeline": "small", "overrides": {"steps": 0}},
            {"pipeline": "small", "overrides": {"stepz": 1}},
            {"pipeline": "small", "settings": ["training.seed"]},
            {"pipeline": "small", "fresh": "perhaps"},
        ):
            with pytest.raises(PrefectHTTPStatusError, match=r"40[09]|422"):
                client.create_flow_run_from_deployment(ids[ON_DEMAND_NAME], parameters=wrong)
        right = {"pipeline": "small", "overrides": {"steps": 5}, "budget_usd": 1.5, "market": "spot"}
        assert client.create_flow_run_from_deployment(ids[ON_DEMAND_NAME], parameters=right).parameters[
            "overrides"
        ] == {"steps": 5}
