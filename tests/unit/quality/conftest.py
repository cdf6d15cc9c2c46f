from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.quality.nights import HONEST, Nights


@pytest.fixture(scope="session")
def one_good_night(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """A pipeline after its first night, which passed. Not to be written to: take a copy."""
    nights = Nights(tmp_path_factory.mktemp("nights"))
    assert nights.night(HONEST).verdict.verdict == "pass"
    return nights


@pytest.fixture
def nights(one_good_night: Nights, tmp_path: Path) -> Nights:
    return one_good_night.copy_to(tmp_path)


@pytest.fixture
def fresh(tmp_path: Path) -> Nights:
    """A pipeline before its first night."""
    return Nights(tmp_path)
