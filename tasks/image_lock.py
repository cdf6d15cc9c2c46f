"""image.lock: the one image that a deployment runs. `tokenmill image lock` writes it; runs take no other image."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tokenmill.errors import UserError
from tokenmill.workspace import write_json


class ImageLock(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: str
    """Repository and tag that was resolved."""
    image: str = Field(pattern=r"^([^@\s]+@)?sha256:[0-9a-f]{64}$")
    """What is run: repository@digest, or the image's id where it has never been in a registry."""
    image_id: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Hash of the image's configuration: the same in every registry and on every machine."""
    platform: str
    lock_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the requirements file inside."""
    versions: dict[str, str]
    """What is inside: python, tensorflow, CUDA and so on."""
    created: str
    """When the image was built, as it says itself."""
    locked: str
    """When it was pinned: UTC."""


def read_lock(path: Path) -> ImageLock:
    """`UserError` if there is none, or if it is none."""
    try:
        return ImageLock.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise UserError(f"image.lock: {path} does not exist; write it with `tokenmill image lock`") from None
    except (OSError, ValueError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"image.lock: {path} cannot be read ({reason}); write it anew with `tokenmill image lock`"
        ) from None


def write_lock(path: Path, lock: ImageLock) -> None:
    write_json(path, lock.model_dump(mode="json"))
