"""Runs the containers that the chart renders as processes of this machine: same command, arguments, environment and files.

What a kubelet does is done here with directories: each volume is one, and a path inside a container is replaced by
its directory wherever it is reported: in arguments, environment and configuration. Service names become 127.0.0.1.
"""

import base64
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.helm.charts import pod_of
from tests.support.servers import program

LOOPBACK = "127.0.0.1"
FIELDS = {"spec.nodeName": "node-a", "metadata.name": "pod-a", "status.podIP": LOOPBACK}


@dataclass
class Node:
    """A machine with the objects of a release; `directory` holds all volumes."""

    directory: Path
    objects: list[dict]
    _volumes: dict[str, Path] = field(default_factory=dict)

    def container(self, item: dict, name: str = "", *, init: bool = False) -> tuple[list[str], dict[str, str]]:
        """Return (command, environment) of a container of a workload, its volumes made."""
        pod = pod_of(item)
        containers = pod.get("initContainers", []) if init else pod["containers"]
        container = next(one for one in containers if name in ("", one["name"]))
        owner = item["metadata"]["name"]
        folders = {volume["name"]: self._volume(owner, volume) for volume in pod["volumes"]}
        fields = {one["name"]: self._value(one, {}) for one in container.get("env", []) if "valueFrom" in one}
        paths = {
            mount["mountPath"]: folders[mount["name"]] / _expanded(mount.get("subPathExpr", ""), fields)
            for mount in container["volumeMounts"]
        }
        for mount in container["volumeMounts"]:
            self._replace_in_files(folders[mount["name"]], paths, is_written=self._is_configuration(pod, mount["name"]))
        command = [self._inside(word, paths) for word in container.get("command", []) + container.get("args", [])]
        environment = {one["name"]: self._value(one, paths) for one in container.get("env", [])}
        return [*_program(command[0]), *command[1:]], os.environ | environment

    def folder(self, item: dict, name: str) -> Path:
        """Return the directory of a volume of a workload."""
        volume = next(one for one in pod_of(item)["volumes"] if one["name"] == name)
        return self._volume(item["metadata"]["name"], volume)

    def _volume(self, owner: str, volume: dict) -> Path:
        kind = next(key for key in volume if key != "name")
        key = volume["hostPath"]["path"] if kind == "hostPath" else f"{owner}/{volume['name']}"
        if key in self._volumes:
            return self._volumes[key]
        path = self._volumes[key] = self.directory / f"volume-{len(self._volumes)}"
        path.mkdir()
        for name, content in self._content(volume, kind).items():
            (path / name).write_bytes(content)
        return path

    def _content(self, volume: dict, kind: str) -> dict[str, bytes]:
        if kind == "configMap":
            found = self._object("ConfigMap", volume["configMap"]["name"])
            return {name: text.encode() for name, text in found["data"].items()}
        if kind == "secret":
            found = self._object("Secret", volume["secret"]["secretName"])
            plain = {key: base64.b64encode(text.encode()) for key, text in found.get("stringData", {}).items()}
            data = found.get("data", {}) | plain
            items = volume["secret"].get("items", [{"key": key, "path": key} for key in data])
            return {item["path"]: base64.b64decode(data[item["key"]]) for item in items}
        return {}

    def _object(self, kind: str, name: str) -> dict:
        return next(one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name)

    def _is_configuration(self, pod: dict, name: str) -> bool:
        """Whether files of the volume name paths of the container."""
        return name == "web-config" or any(
            volume["name"] == name and "configMap" in volume for volume in pod["volumes"]
        )

    def _replace_in_files(self, folder: Path, paths: dict[str, Path], *, is_written: bool) -> None:
        for file in folder.iterdir() if is_written else ():
            file.write_text(self._inside(file.read_text(), paths))

    def _inside(self, text: str, paths: dict[str, Path]) -> str:
        """Return `text` with paths of the container replaced, and its services where they are."""
        longest = sorted(paths, key=len, reverse=True)
        pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?=[/\s\"']|$)"
        text = re.sub(pattern, lambda match: str(paths[match[1]]), text)
        return re.sub(r"[a-z0-9-]+\.lockstep\.svc", LOOPBACK, text)

    def _value(self, one: dict, paths: dict[str, Path]) -> str:
        if "valueFrom" in one:
            return FIELDS[one["valueFrom"]["fieldRef"]["fieldPath"]]
        return self._inside(one["value"], paths)


def _expanded(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)


def _program(name: str) -> list[str]:
    if name == "lockstep":
        return [sys.executable, "-m", "lockstep.cli.main"]
    if name == "python":
        return [sys.executable]
    return [shutil.which(name) or program(name)]
