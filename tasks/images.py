"""Resolving a tag to what image.lock pins, and judging a pin that is there."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tasks.engine import connect, engine_errors, ensure_image, mirrored, probe
from tasks.image_lock import ImageLock
from tokenmill.errors import UserError

OLD_DAYS = 90
"""A pin older than that is told of: its base has had security fixes by then."""


def resolve(reference: str, mirror: str | None = None) -> ImageLock:
    """What the tag `reference` names now: pulled if a registry has it, else the local image."""
    with closing(connect()) as client:
        image = _newest(client, reference, mirror)
        found = probe(client, image.id)
    return ImageLock(
        reference=reference,
        image=_pinned(image, reference, mirror),
        image_id=image.id,
        platform=f"{image.attrs['Os']}/{image.attrs['Architecture']}",
        lock_sha256=found["lock_sha256"],
        versions=found["versions"],
        created=str(image.attrs["Created"])[:19] + "Z",
        locked=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _newest(client: Any, reference: str, mirror: str | None) -> Any:
    import docker.errors

    repository, tag = _split(reference)
    with engine_errors():
        try:
            return client.images.pull(mirrored(repository, mirror), tag=tag)
        except docker.errors.APIError as error:
            try:
                return client.images.get(reference)
            except docker.errors.ImageNotFound:
                said = error.explanation or error
                raise UserError(
                    f"image.reference: '{reference}' is neither in a registry ({said}) nor here; "
                    "push it, or build it: scripts/build-image engine TAG"
                ) from None


def _split(reference: str) -> tuple[str, str]:
    """Repository and tag. A colon before the last slash belongs to the registry's port."""
    if "@" in reference:
        raise UserError(f"image.reference: '{reference}' is a digest already; write repository:tag")
    head, colon, tag = reference.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (reference, "latest")


def _pinned(image: Any, reference: str, mirror: str | None) -> str:
    """repository@digest as the deployment names it, or the image's id if no registry has it."""
    repository, _ = _split(reference)
    for digest in image.attrs.get("RepoDigests") or []:
        known, _, value = digest.partition("@")
        if known in (repository, mirrored(repository, mirror)):
            return f"{repository}@{value}"
    return str(image.id)


@dataclass(frozen=True)
class Verdict:
    """What `tokenmill image check` says: sentences, and whether something must be mended."""

    sentences: list[str]
    ok: bool


def check(lock: ImageLock, mirror: str | None = None, now: datetime | None = None) -> Verdict:
    """Age of the pin, whether the pinned image can be had and is what it was, and what the tag names today."""
    with closing(connect()) as client:
        pinned = ensure_image(client, lock.image, mirror)
    if pinned.id != lock.image_id:
        return Verdict([f"{lock.image} is {pinned.id[:19]} here, image.lock pins {lock.image_id[:19]}"], ok=False)
    locked = datetime.strptime(lock.locked, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    days = ((now or datetime.now(UTC)) - locked).days
    advice = "; build on a newer base and lock again" if days > OLD_DAYS else ""
    sentences = [f"{lock.image} is here and is what image.lock pins", f"the pin is {days} days old{advice}"]
    newest = resolve(lock.reference, mirror)
    if newest.image_id == lock.image_id:
        return Verdict([*sentences, f"{lock.reference} still names it"], ok=True)
    sentences.append(f"{lock.reference} now names {newest.image}, built {newest.created}")
    return Verdict([*sentences, *_differences(lock, newest)], ok=True)


def _differences(old: ImageLock, new: ImageLock) -> list[str]:
    if old.lock_sha256 == new.lock_sha256:
        return ["its requirements are the same: the base or tokenmill changed"]
    names = sorted({*old.versions, *new.versions})
    changed = [
        f"{name} {old.versions.get(name, 'absent')} → {new.versions.get(name, 'absent')}"
        for name in names
        if old.versions.get(name) != new.versions.get(name)
    ]
    return [f"its requirements changed: {', '.join(changed) or 'none of the main packages'}"]
