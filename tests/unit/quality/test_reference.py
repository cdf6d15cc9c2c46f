from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.quality.reference import LastGood, choose_reference, read_last_good, write_last_good
from tokenmill.quality.verdict import Verdict
from tokenmill.workspace import Workspace, write_json


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace.open(str(tmp_path))
    for snapshot, outcome in (("s1", "pass"), ("s2", "warn"), ("bad", "fail")):
        verdict = Verdict.model_validate(
            {"verdict": outcome, "snapshot": snapshot, "rules": "r", "reference": None, "findings": []}
        )
        write_json(workspace.validation(snapshot, "r") / "verdict.json", verdict.model_dump(mode="json"))
    return workspace


def test_the_first_night_has_no_reference(workspace: Workspace) -> None:
    assert read_last_good(workspace, "p") is None
    assert choose_reference(workspace, "p", "s1", "last_good") is None


def test_a_snapshot_is_never_its_own_reference(workspace: Workspace) -> None:
    write_last_good(workspace, "p", LastGood("s1", "validations/s1/r", None))
    assert choose_reference(workspace, "p", "s1", "last_good") is None
    assert choose_reference(workspace, "p", "s2", "last_good") == "validations/s1/r"
    write_last_good(workspace, "p", LastGood("s2", "validations/s2/r", "validations/s1/r"))
    assert choose_reference(workspace, "p", "s2", "last_good") == "validations/s1/r"
    assert choose_reference(workspace, "p", "s1", "last_good") == "validations/s2/r"
    assert choose_reference(workspace, "other", "s1", "last_good") is None


def test_a_reference_can_be_chosen_or_refused(workspace: Workspace) -> None:
    write_last_good(workspace, "p", LastGood("s1", "validations/s1/r", None))
    assert choose_reference(workspace, "p", "s2", "none") is None
    assert choose_reference(workspace, "p", "s1", "s2") == "validations/s2/r"
    for name in ("bad", "unknown"):
        with pytest.raises(UserError, match=f"no passing validation of a snapshot '{name}'"):
            choose_reference(workspace, "p", "s1", name)


def test_a_deleted_validation_is_no_reference(workspace: Workspace) -> None:
    write_last_good(workspace, "p", LastGood("gone", "validations/gone/r", None))
    assert read_last_good(workspace, "p") is None
