# A training image with Lockstep and its C++ kernels in front of collectives, built for exactly the torch of that image.
# Build from the repository's root: docker build -f docker/hooks.Dockerfile --build-arg TRAINING=IMAGE -t IMAGE-lockstep .
# TRAINING is a Debian or Ubuntu image with Python 3.11 or newer and torch; give it by digest: tags move.
ARG TRAINING
FROM ${TRAINING} AS build
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY docker/requirements-build.txt docker/
RUN python -m venv --system-site-packages /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r docker/requirements-build.txt
COPY setup.py LICENSE ./
COPY setup setup
COPY lockstep lockstep
RUN python setup/distributions.py --stage-agent /project \
    && /build/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-compile --target /opt/lockstep /project
# The interpreter that trains, with its own torch: the build is for these two.
RUN PYTHONPATH=/opt/lockstep python -m lockstep.cli.main build-hooks --output /opt/lockstep-hooks

FROM ${TRAINING}
COPY --from=build /opt/lockstep /opt/lockstep
COPY --from=build /opt/lockstep-hooks /opt/lockstep-hooks
# The agent enters every Python that the image starts and watches those that train, as under `lockstep run`.
ENV PYTHONPATH=/opt/lockstep/lockstep/agent/site:/opt/lockstep LOCKSTEP_HOOKS_DIR=/opt/lockstep-hooks
