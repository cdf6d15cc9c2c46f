from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from small_mill import Mill

from tokenmill.workspace import Workspace

# A loaded machine is no fault of the code: no test here asserts a time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mill:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "corpus"
    root.mkdir()
    return Mill(root, Workspace.open(str(tmp_path / "workspace")))
