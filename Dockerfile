# The images of tokenmill:
#
#   docker build --target engine .                                   TensorFlow and the stages; no Prefect, no compiler
#   docker build --target engine --build-arg VARIANT=gpu .           the same with CUDA from the hash-checked lock
#   docker build --target orchestrator .                             Prefect, flows, tasks; no TensorFlow
#   docker build --target explore [--build-arg SSHD=1] .             JupyterLab on the engine's packages
#
# The base is pinned by digest. Every package is pinned by hash in requirements/. Two optional build secrets never reach a layer: `pip`
# (a pip.conf, for a mirror) and `ca` (certificates of a company's proxy, PEM).
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/tokenmill/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tokenmill \
 && python3 -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 12), sys.version' \
 && python3 -m venv /opt/tokenmill
WORKDIR /opt/src

# ---- engine ----
FROM base AS engine-packages
ARG VARIANT=cpu
COPY requirements/engine.txt requirements/engine-gpu.txt /opt/locks/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/ca.pem \
    --mount=type=cache,target=/root/.cache/pip \
    case "$VARIANT" in cpu) lock=engine.txt ;; gpu) lock=engine-gpu.txt ;; *) echo "VARIANT: '$VARIANT' is not cpu or gpu" >&2; exit 2 ;; esac \
 && if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi \
 && pip install --no-compile --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r /opt/locks/$lock \
 && mv /opt/locks/$lock /opt/tokenmill/requirements.lock && rm -r /opt/locks
# The wheels' own RUNPATH leaves out some CUDA libraries: the loader is told of all. Every one must load, and TensorFlow import.
COPY scripts/check-image /usr/local/bin/check-image
RUN if [ "$VARIANT" = gpu ]; then ls -d /opt/tokenmill/lib/python3*/site-packages/nvidia/*/lib > /etc/ld.so.conf.d/nvidia.conf && ldconfig; fi \
 && check-image "$VARIANT"

FROM engine-packages AS engine
COPY pyproject.toml README.md LICENSE /opt/src/
COPY tokenmill /opt/src/tokenmill
# Only the engine: flows and tasks stay out. A path file instead of an installation needs no build tools.
RUN python -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'tokenmill.pth').write_text('/opt/src\n')" \
 && python -c "import tokenmill.stages.harness, importlib.util as i; assert not i.find_spec('prefect') and not i.find_spec('flows')"
ARG REVISION=unknown
ARG LOCK_SHA256=unknown
ARG VERSION=unknown
ARG VARIANT=cpu
RUN test "$LOCK_SHA256" = unknown || echo "$LOCK_SHA256  /opt/tokenmill/requirements.lock" | sha256sum --check --quiet
LABEL org.opencontainers.image.title="tokenmill engine" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.tokenmill.variant="${VARIANT}" \
      org.tokenmill.lock-sha256="${LOCK_SHA256}"
USER 10001:10001
ENTRYPOINT ["python", "-m"]

# ---- explore ----
FROM engine AS explore
USER 0
ARG SSHD=0
COPY requirements/explore.txt /opt/tokenmill/explore.lock
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/ca.pem \
    --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi \
 && pip install --no-compile --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r /opt/tokenmill/explore.lock
RUN if [ "$SSHD" = 1 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends openssh-server \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*; fi
COPY scripts/explore /usr/local/bin/explore
LABEL org.opencontainers.image.title="tokenmill explore"
USER 10001:10001
EXPOSE 8888
ENTRYPOINT ["explore"]

# ---- orchestrator ----
FROM base AS orchestrator
COPY requirements/orchestrator.txt /opt/tokenmill/requirements.lock
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/ca.pem \
    --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi \
 && pip install --no-compile --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r /opt/tokenmill/requirements.lock
COPY pyproject.toml README.md LICENSE /opt/src/
COPY tokenmill /opt/src/tokenmill
COPY tasks /opt/src/tasks
COPY flows /opt/src/flows
RUN python -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'tokenmill.pth').write_text('/opt/src\n')" \
 && printf '#!/opt/tokenmill/bin/python\nfrom flows.cli import main\nmain()\n' > /opt/tokenmill/bin/tokenmill && chmod 755 /opt/tokenmill/bin/tokenmill \
 && python -c "import flows.retrain, tasks.runtime"
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="tokenmill orchestrator" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PREFECT_HOME=/tmp/prefect HOME=/tmp PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1
USER 10001:10001
ENTRYPOINT ["tokenmill"]
