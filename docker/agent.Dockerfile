# The agent for training images that are left as they are: an init container of this image copies it into a volume.
# Build from the repository's root: docker build -f docker/agent.Dockerfile -t lockstep/agent:0.1.0 .
# Set both bases to digests of your registry (--build-arg PYTHON=python@sha256:...): tags move.
ARG PYTHON=python:3.11.14-slim-bookworm
ARG BUSYBOX=busybox:1.37.0

FROM ${PYTHON} AS build
# A compiler for the agent's C extension, which is optional: without one the agent writes its marks in Python.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY docker/requirements-build.txt docker/
RUN pip install --no-cache-dir --require-hashes -r docker/requirements-build.txt
COPY setup.py LICENSE ./
COPY setup setup
COPY lockstep lockstep
# The agent's own distribution: exporter, coordinator and the other commands stay out of training.
RUN python setup/distributions.py --stage-agent /project \
    && pip install --no-cache-dir --no-deps --no-build-isolation --no-compile --target /agent /project \
    && cd /agent && find . -mindepth 1 -maxdepth 1 ! -name lockstep -exec rm -rf {} +

FROM ${BUSYBOX}
COPY --from=build /agent /agent
COPY LICENSE /LICENSE
USER 65532:65532
# Its one argument is the directory: /opt/lockstep, of which PYTHONPATH then names lockstep/agent/site.
ENTRYPOINT ["sh", "-ec", "cp -R /agent/. \"$1\"", "copy-agent"]
CMD ["/opt/lockstep"]
