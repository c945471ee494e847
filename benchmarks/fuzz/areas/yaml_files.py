"""YAML as people write it: configurations, thresholds, specifications of jobs, web configurations."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import yaml

from benchmarks.fuzz import mutate
from benchmarks.fuzz.harness import ACCEPTED
from coordinator.expected.model_fit import read_setup
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.specs import API, SpecText, read_specs
from exporter.config import ExporterConfig
from lockstep.cli.services_command import read_config
from lockstep.contracts.errors import LockstepError
from lockstep.serving.web_config import read_web_config

_ROOT = Path(__file__).parents[3]
_WEB = """
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: NoClientCert
  min_version: TLS12
http_server_config:
  headers: {X-Frame-Options: deny}
basic_auth_users:
  prometheus: $2b$04$abcdefghijklmnopqrstuuJ1x5CCsVsNJ1x5CCsVsNJ1x5CCsVsNJ
"""
_SPECIALS = (
    "2024-13-45",
    "2024-02-30 25:61:61",
    "!!timestamp 2024-99-99",
    "!!python/object/apply:os.system [ls]",
    "!!binary =!",
    "!!int 0x",
    "!!float .",
    "0b2",
    "0o9",
    "190:20:99:70",
    "1_0_0",
    "&a [*a]",
    "*missing",
    "<<: {a: 1}",
    "{[1, 2]: 3}",
    "? [a]\n: b",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "%YAML 9.9\n---\n",
    "---\n---\n",
    "a: 1\na: 2",
    "\t",
    "\ufeff",
    "\x85",
    ": ",
    "- - - - -",
    "|\n",
    ">-\n",
    "9" * 5000,
    "1e999999",
    "-.inf",
    ".nan",
)
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
_DEPTHS = (50, 500, 5000)


class YamlFiles:
    """One file in each case, read as its reader reads it."""

    name = "yaml"

    def begin(self, _: Random) -> None:
        """Make a folder with what web configurations name."""
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-fuzz-"))
        for name in ("server.crt", "server.key"):
            shutil.copy(_ROOT / "tests/serving/certificates" / name, self._folder / name)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder)

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Read one file in each case."""
        path = self._folder / "file.yaml"
        for random in randoms:
            read, text = random.choice(_READERS)
            path.write_bytes(_content(random, text))
            try:
                read(path)
            except LockstepError as error:
                yield type(error).__name__
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error
            else:
                yield ACCEPTED


def _content(random: Random, text: str) -> bytes:
    kind = random.random()
    if kind < 0.05:
        return text.encode()
    if kind < 0.55:
        changed = mutate.changed_value(random, yaml.safe_load(text), random.choice((1, 1, 2, 4)))
        return yaml.dump(changed, Dumper=_Dumper).replace(mutate.HALF_PAIR, "\\ud800").encode()
    if kind < 0.75:
        lines = text.splitlines()
        at = random.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        special = random.choice(_SPECIALS)
        lines[at] = random.choice((special, f"{key}: {special}" if colon else special))
        return "\n".join(lines).encode()
    if kind < 0.80:
        depth = random.choice(_DEPTHS)
        return random.choice((text + _BOMB, "[" * depth, "{a: " * depth + "1", "- " * depth + "1")).encode()
    return mutate.changed_bytes(random, text.encode(), random.choice((1, 1, 4, 16)))


class _Dumper(yaml.SafeDumper):
    """Writes what a mutation left, aliases spelt out."""

    def ignore_aliases(self, _: object) -> bool:
        """Write each value where it stands."""
        return True


def _exporter(path: Path) -> None:
    read_config(ExporterConfig, argparse.Namespace(config=path, set=[]), "LOCKSTEP_FUZZED_").validate()


def _coordinator(path: Path) -> None:
    read_config(CoordinatorConfig, argparse.Namespace(config=path, set=[]), "LOCKSTEP_FUZZED_").validate()


def _policy(path: Path) -> None:
    CoordinatorConfig(policy_file=str(path)).policy()


def _specifications(path: Path) -> None:
    read_specs(str(path))


def _specification(path: Path) -> None:
    text = path.read_bytes().decode(errors="surrogateescape")
    read_setup(SpecText(text=text, name="specification of run r", source=API))


def _web(path: Path) -> None:
    read_web_config(path)


def _example(name: str) -> str:
    return (_ROOT / "examples" / name).read_text(encoding="utf-8")


_READERS: tuple[tuple[Callable[[Path], None], str], ...] = (
    (_exporter, _example("exporter.yaml")),
    (_coordinator, _example("coordinator.yaml")),
    (_policy, _example("policy.yaml")),
    (_specifications, "big-*: file.yaml\nother: file.yaml\n"),
    (_specification, _example("simulator/gpt2_32.yaml")),
    (_specification, _example("simulator/gpt3_175b.yaml")),
    (_specification, _example("simulator/moe_64.yaml")),
    (_web, _WEB),
)
