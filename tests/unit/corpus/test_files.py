from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tokenmill.corpus.files import glob_pattern, list_files, open_bytes, raw_fingerprint
from tokenmill.corpus.refusals import Reason
from tokenmill.corpus.settings import SourceSettings
from tokenmill.errors import UserError


def source(root: Path | str, **options: Any) -> SourceSettings:
    return SourceSettings.model_validate({"name": "all", "root": str(root), **options})


def listed(root: Path | str, **options: Any) -> list[str]:
    return [file.path for file in list_files(source(root, **options), str(root)).files]


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("**/*", ["a", "a/b", "a/b/c.txt"], []),
        ("*.txt", ["a.txt"], ["a/b.txt", "a.txtx"]),
        ("**/*.txt", ["a.txt", "a/b/c.txt"], ["a.md"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a", "ab/c"]),
        ("**/test/**", ["test/a", "x/test/a/b"], ["tests/a", "test"]),
        ("part-[0-9]?.gz", ["part-0x.gz", "part-11.gz"], ["part-x1.gz", "part-1.gz"]),
        ("[!ab].c", ["c.c"], ["a.c", "/.c"]),
        ("a+b(1).txt", ["a+b(1).txt"], ["aab(1).txt"]),
    ],
)
def test_globs(glob: str, yes: list[str], no: list[str]) -> None:
    pattern = re.compile(glob_pattern(glob))
    assert [name for name in yes + no if pattern.fullmatch(name)] == yes


def test_files_come_in_the_order_of_their_path_bytes(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a/z.txt", "a.txt", "Z.txt", "ä.txt", "a/b/c.txt")
    assert listed(tmp_path) == ["Z.txt", "a.txt", "a/b/c.txt", "a/z.txt", "b.txt", "ä.txt"]


def test_include_and_exclude(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "test/b.py", "x/test/c.py", "x/d.py", "x/e.txt")
    assert listed(tmp_path, include=["**/*.py"], exclude=["test/**", "**/test/**"]) == ["a.py", "x/d.py"]


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    listing = list_files(source(tmp_path), str(tmp_path))
    assert [file.path for file in listing.files] == ["a.txt"]
    assert [(path, refusal.reason, refusal.excerpt) for path, refusal in listing.refused] == [
        ("pipe.txt", Reason.UNREADABLE, "not a regular file")
    ]


def test_a_root_may_be_one_file(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    assert listed(tmp_path / "a.txt") == ["a.txt"]


def test_symlinks_are_followed_and_loops_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, "a/b.txt")
    make(tmp_path, "elsewhere/c.txt")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    listing = list_files(source(root), str(root))
    assert [file.path for file in listing.files] == ["a/b.txt", "link/c.txt"]
    assert [(path, refusal.reason.value) for path, refusal in listing.refused] == [
        ("a/up", "symlink_loop"),
        ("self", "symlink_loop"),
    ]


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    listing = list_files(source(tmp_path), str(tmp_path))
    assert [(path, refusal.reason.value) for path, refusal in listing.refused] == [("gone.txt", "unreadable")]


def test_a_hugging_face_folder_is_its_data_files(tmp_path: Path) -> None:
    make(tmp_path, "dataset_dict.json", "train/dataset_info.json", "train/data-00000-of-00001.arrow", "note.txt")
    make(tmp_path, "train/cache-0123456789abcdef.arrow")
    (tmp_path / "train/state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert listed(tmp_path) == ["note.txt", "train/data-00000-of-00001.arrow"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file under .* matches \*.nothing"):
        listed(tmp_path, include=["*.nothing"])
    with pytest.raises(UserError, match="is not a folder"):
        listed(tmp_path / "missing")
    with pytest.raises(UserError, match="cannot list 'nonsense://x'"):
        listed("nonsense://x")


def test_urls_through_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name in ("b.txt", "a/c.txt", "a/d.md"):
        system.pipe_file(f"/{tmp_path.name}/{name}", name.encode())
    url = f"memory://{tmp_path.name}"
    listing = list_files(source(url, include=["**/*.txt"]), url)
    assert [(file.path, file.bytes) for file in listing.files] == [("a/c.txt", 7), ("b.txt", 5)]
    with open_bytes(listing.files[1].location) as handle:
        assert handle.read() == b"b.txt"
    assert raw_fingerprint(listing.files[0]) != raw_fingerprint(listing.files[1])


def test_a_fingerprint_is_of_the_bytes_alone(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (file,) = list_files(source(tmp_path), str(tmp_path)).files
    before = raw_fingerprint(file)
    os.utime(tmp_path / "a.txt", (0, 0))
    assert raw_fingerprint(file) == before
    stat = (tmp_path / "a.txt").stat()
    (tmp_path / "a.txt").write_text("b.txt")
    os.utime(tmp_path / "a.txt", (stat.st_atime, stat.st_mtime))
    assert raw_fingerprint(file) != before
