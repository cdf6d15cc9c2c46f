"""The container engine, through the Docker SDK: its errors as one sentence each, images by digest, short probes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenmill.errors import UserError

INSIDE_LOCK = "/opt/tokenmill/requirements.lock"
PROBE = """
import hashlib, importlib.metadata, json, pathlib, platform, sys
packages = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
wanted = "tensorflow tensorflow-cpu keras numpy nvidia-cuda-runtime-cu12 nvidia-cudnn-cu12 nvidia-nccl-cu12".split()
found = {"lock_sha256": hashlib.sha256(pathlib.Path("/opt/tokenmill/requirements.lock").read_bytes()).hexdigest()}
found["versions"] = {name: packages[name] for name in wanted if name in packages}
found["versions"]["python"] = platform.python_version()
if len(sys.argv) > 1:
    path = pathlib.Path(sys.argv[1])
    found["nonce"] = path.read_text() if path.exists() else None
print(json.dumps(found))
"""
"""Says which packages are inside, and reads a file of the workspace back."""


@contextmanager
def engine_errors() -> Iterator[None]:
    """What the engine refuses becomes `UserError`: one sentence that names the thing and the fix."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise UserError(
            f"image: the engine does not have it and cannot pull it ({_said(error)}); pull or build it"
        ) from None
    except docker.errors.APIError as error:
        said = _said(error)
        if "no space left" in said:
            raise UserError(
                "the container engine's disk is full; free some space: docker system df, docker system prune"
            ) from None
        raise UserError(f"the container engine refuses: {said}") from None
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise UserError(
            f"no container engine answers ({error}); start it, name it in DOCKER_HOST, or set runtime.kind to process"
        ) from None


def _said(error: Any) -> str:
    return str(error.explanation or error).strip()


def connect() -> Any:
    """A client of the engine that DOCKER_HOST names, else of the local socket."""
    import docker

    with engine_errors():
        client = docker.from_env()
        client.ping()
        return client


def ensure_image(client: Any, image: str, mirror: str | None = None) -> Any:
    """The image of this digest or id, pulled if it is not there, from `mirror` if one is given."""
    import docker.errors

    with engine_errors():
        try:
            return client.images.get(image)
        except docker.errors.ImageNotFound:
            repository, at, digest = image.rpartition("@")
            if not at:
                raise UserError(
                    f"image: the engine does not have {image[:19]}, which was never in a registry; "
                    "build it here, or push it and run `tokenmill image lock`"
                ) from None
            return client.images.pull(f"{mirrored(repository, mirror)}@{digest}")


def mirrored(repository: str, mirror: str | None) -> str:
    """`repository` behind `mirror`: its own host, if it names one, gives way.

    >>> mirrored("ghcr.io/team/engine", "harbor.example.org/proxy")
    'harbor.example.org/proxy/team/engine'
    """
    if mirror is None:
        return repository
    host, slash, rest = repository.partition("/")
    names_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"{mirror.rstrip('/')}/{rest if names_host else repository}"


def probe(client: Any, image: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """Run `PROBE` in a throw-away container without network and give what it says."""
    import docker.errors

    settings: dict[str, Any] = {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        **options,
    }
    with engine_errors():
        try:
            said = client.containers.run(
                image, list(arguments), entrypoint=["python", "-I", "-c", PROBE], remove=True, **settings
            )
        except docker.errors.ContainerError as error:
            lines = (error.stderr or b"").decode(errors="replace").strip().splitlines() or ["no word"]
            raise UserError(
                f"image: {image} is no engine image of tokenmill ({lines[-1]}); build target engine"
            ) from None
    found: dict[str, Any] = json.loads(said)
    return found
