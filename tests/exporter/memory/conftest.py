"""The fixtures of the host watch: a /proc and a /sys/fs/cgroup of our own."""

from tests.exporter.host_watch.conftest import node

__all__ = ["node"]
