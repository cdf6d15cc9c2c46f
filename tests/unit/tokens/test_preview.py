"""What `tokenmill plan` says of the corpus, beside what a prepare then does."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_mill import Mill, make_texts

from tokenmill.errors import UserError
from tokenmill.tokens.preview import preview


def written(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_new_corpus_is_all_work_and_a_prepared_one_none(mill: Mill) -> None:
    texts = make_texts(20)
    mill.write({f"{number:03}.txt": text for number, text in enumerate(texts)})
    found = preview(mill.request())
    assert (found.files, found.known_files, found.tokenizer, found.snapshot) == (20, 0, None, None)
    assert found.bytes == sum(len(text.encode()) for text in texts)
    prepared = mill.prepare()
    found = preview(mill.request())
    assert (found.known_files, found.tokenizer) == (20, prepared.manifest.tokenizer)
    assert found.snapshot is not None
    assert found.snapshot.snapshot == prepared.snapshot == mill.prepare().snapshot


def test_what_changed_is_counted_and_nothing_is_written(mill: Mill) -> None:
    mill.write({f"{number:03}.txt": text for number, text in enumerate(make_texts(20))})
    mill.prepare()
    mill.write({"003.txt": "changed", "zzz.txt": "new"})
    before = written(mill.workspace.root)
    found = preview(mill.request())
    assert (found.files, found.known_files, found.snapshot) == (21, 19, None)
    assert written(mill.workspace.root) == before


def test_a_corpus_that_cannot_be_used_is_refused(mill: Mill) -> None:
    with pytest.raises(UserError, match=r"no file under .* mend include or root"):
        preview(mill.request())
