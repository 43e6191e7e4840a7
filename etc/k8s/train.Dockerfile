# An image for `cmsspark lab train run --on k8s` with this package, its networks and its readers. Build it in a checkout:
#   docker build -f etc/k8s/train.Dockerfile -t registry.example.org/cmsspark-train:0.1.0 .
# Other extras: --build-arg EXTRAS=events,training,tensorboard. JAX on GPUs: --build-arg PACKAGES="jax[cuda12]".
FROM python:3.11-slim-bookworm AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY setup.py pyproject.toml MANIFEST.in LICENSE README.md constraints.txt ./
COPY cmsspark cmsspark
COPY etc etc
COPY schemas schemas
RUN pip wheel --no-cache-dir -c constraints.txt --no-deps -w /wheels .

FROM python:3.11-slim-bookworm
ARG EXTRAS=events,training,tensorboard
ARG PACKAGES=
COPY --from=wheel /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/*.whl)[$EXTRAS]" $PACKAGES && rm -rf /wheels
# The launcher's pods run as user 1000, without a home.
ENV PYTHONUNBUFFERED=1 TZ=UTC NUMBA_CACHE_DIR=/tmp/numba
USER 1000
CMD ["cmsspark", "--help"]
