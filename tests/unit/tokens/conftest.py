from __future__ import annotations

from pathlib import Path

import pytest
from small_mill import Mill

from tokenmill.workspace import Workspace


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mill:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "corpus"
    root.mkdir()
    return Mill(root, Workspace.open(str(tmp_path / "workspace")))
