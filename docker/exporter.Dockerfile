# The exporter of a node. Build from the repository's root: docker build -f docker/exporter.Dockerfile -t lockstep/exporter:0.1.0 .
# Set the base to a digest of your registry (--build-arg PYTHON=python@sha256:...): a tag moves. Python packages are pinned by
# hash, in requirements-exporter.txt.
ARG PYTHON=python:3.11.14-slim-bookworm

FROM ${PYTHON} AS build
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /source
COPY docker/requirements-build.txt docker/requirements-exporter.txt docker/
RUN pip install --no-cache-dir --require-hashes -r docker/requirements-build.txt \
    && pip install --no-cache-dir --require-hashes --only-binary :all: -r docker/requirements-exporter.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY lockstep lockstep
COPY exporter exporter
COPY coordinator coordinator
COPY dashboards dashboards
COPY alerts alerts
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && pip uninstall --yes setuptools pip

FROM ${PYTHON}
COPY --from=build /opt/venv /opt/venv
COPY LICENSE /LICENSE
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Nothing is written to the root: state and spool lie in a volume at /var/lib/lockstep, which belongs to this user.
RUN install -d -m 0750 -o 65532 -g 65532 /var/lib/lockstep
USER 65532:65532
EXPOSE 9855
VOLUME ["/var/lib/lockstep"]
# For Docker and Podman; Kubernetes asks by its own probes. With --web.config.file give a healthcheck of your own.
HEALTHCHECK --interval=20s --timeout=5s --start-period=20s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9855/-/healthy', timeout=4)"]
ENTRYPOINT ["lockstep"]
CMD ["exporter"]
