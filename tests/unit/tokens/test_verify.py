"""What was verified is remembered outside the workspace; where that fails, nothing but time is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_mill import Mill, make_texts

from tokenmill.errors import UserError


def unwritable(cache: Path) -> None:
    cache.touch()  # a file where a folder should be


def not_text(cache: Path) -> None:
    (cache / "tokenmill").mkdir(parents=True)
    (cache / "tokenmill" / "verified").write_bytes(b"\xff\xfe\n\x00")


def absent(cache: Path) -> None:
    pass


@pytest.mark.parametrize("state", [absent, unwritable, not_text])
def test_a_corrupt_byte_is_found_whatever_state_the_memory_is_in(
    mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state(tmp_path / "cache")
    open_twice_then_corrupt(mill)


def test_a_user_without_a_home_opens_a_snapshot(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    open_twice_then_corrupt(mill)


def open_twice_then_corrupt(mill: Mill) -> None:
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(20))})
    mill.open()
    path = mill.open().shard_paths()[0]
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"train\.tfrecord is corrupt in row 0"):
        mill.open()
