"""Sets node conditions at the Kubernetes API server, one node at a time, until all have their desired state.

Only the leader of a pair does so. A patch that the server refuses is counted, and not retried until the desired
condition changes. Other failures are retried after 1 s, then with exponential backoff up to a minute.
"""

import asyncio
import contextlib
import logging
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from coordinator.notify.node_condition import CONTENT_TYPE, NodeCondition, path_of, wanted_conditions
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import NODE_PATCH_OUTCOMES
from lockstep.serving.log_limit import LogLimit
from lockstep.serving.messaging import backoff_seconds
from lockstep.serving.secret_file import read_secret

if TYPE_CHECKING:
    from coordinator.leadership import Leadership
    from coordinator.runs import Runs
    from coordinator.settings.config import CoordinatorConfig

_log = logging.getLogger(__name__)

APPLIED, REFUSED, RETRIED = NODE_PATCH_OUTCOMES
TRY_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
_REDIRECT, _ERROR = 300, 500
_TRANSIENT = (401, 408, 409, 425, 429)
"""Statuses that are retried. 401 is one of them, because the token in its file is replaced before it expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """The URL of the API server, and the files of the service account's token and of the CA certificates."""

    url: str
    token_file: str
    ca_file: str

    def headers(self) -> dict[str, str]:
        """Return the header with the current token from its file; blocking.

        Raises
        ------
        ConfigError
            The file cannot be read, or its content is not valid in a header.
        """
        return {"Authorization": f"Bearer {read_secret(self.token_file, 'kubernetes_token_file')}"}

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context that checks the server's certificate; blocking.

        Raises
        ------
        ConfigError
            The file of certificates cannot be used.
        """
        if not self.ca_file:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"kubernetes_ca_file: got {self.ca_file!r}, expected certificates: {error}") from None


class NodePatcher:
    """Patches node conditions. `wait` sleeps before a retry, and returns early when the patcher stops."""

    def __init__(
        self,
        server: ApiServer,
        runs: "Runs",
        leadership: "Leadership",
        *,
        now_s: Callable[[], float],
        wait: Callable[[float], Awaitable[None]] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._server, self._runs, self._leadership = server, runs, leadership
        self._now_s, self._jitter = now_s, jitter
        self._wait = wait or self._wait_or_stop
        self._settled: dict[str, NodeCondition] = {}
        """Conditions that were applied or refused, by node; not patched again."""
        self._wanted: dict[str, NodeCondition] = {}
        self._changed, self._stopping = asyncio.Event(), asyncio.Event()
        self._limit = LogLimit(_log)
        self.counts: Counter[str] = Counter(dict.fromkeys(NODE_PATCH_OUTCOMES, 0))

    def on_tick(self) -> None:
        """Update the desired conditions; a node that has no ranks any more is set to not slow, then forgotten."""
        if not self._leadership.leads:
            self._settled.clear()  # another coordinator may change them meanwhile
            self._wanted = {}
            return
        self._wanted = wanted_conditions(self._runs.by_name.values())
        for node in self._settled.keys() - self._wanted.keys():
            if not self._settled[node].is_slow:
                del self._settled[node]
            else:
                self._wanted[node] = _GONE
        if self._due():
            self._changed.set()

    def stop(self) -> None:
        """Stop after the attempt under way."""
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Patch due conditions until `stop`."""
        failures = 0
        while not self._stopping.is_set():
            await self._changed.wait()
            self._changed.clear()
            if self._stopping.is_set():
                return
            if await self._patch_all():
                failures = 0
                continue
            failures += 1
            await self._wait(
                backoff_seconds(failures, self._jitter(), first_seconds=FIRST_WAIT_S, longest_seconds=LONGEST_WAIT_S)
            )
            self._changed.set()

    def _due(self) -> list[tuple[str, NodeCondition]]:
        """Return the conditions that are not settled, slow nodes first."""
        due = [(node, each) for node, each in self._wanted.items() if self._settled.get(node) != each]
        return sorted(due, key=lambda item: (not item[1].is_slow, item[0]))

    async def _patch_all(self) -> bool:
        """Patch due conditions; return whether none must be retried."""
        try:
            headers = await asyncio.to_thread(self._server.headers)
            connector = aiohttp.TCPConnector(limit=1, ssl=await asyncio.to_thread(self._server.context))
        except ConfigError as error:
            self._note_retry(str(error))
            return False
        timeout = aiohttp.ClientTimeout(total=TRY_S)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers | {"Content-Type": CONTENT_TYPE}, timeout=timeout
        ) as session:
            while (due := self._due()) and not self._stopping.is_set():
                node, condition = due[0]
                if not await self._patch(session, node, condition):
                    return False
                self._settled[node] = condition
        return True

    async def _patch(self, session: aiohttp.ClientSession, node: str, condition: NodeCondition) -> bool:
        """Return whether the server has applied or refused it."""
        url = f"{self._server.url.rstrip('/')}{path_of(node)}"
        try:
            async with session.patch(url, data=condition.body(self._now_s()), allow_redirects=False) as answer:
                status = answer.status
                answer.close()  # the body is the complete node object
        except TimeoutError:
            self._note_retry(f"no answer within {TRY_S:g} s")
            return False
        except (aiohttp.ClientError, OSError) as error:
            self._note_retry(type(error).__name__)
            return False
        if status >= _ERROR or status in _TRANSIENT:
            self._note_retry(f"status {status}")
            return False
        outcome = APPLIED if status < _REDIRECT else REFUSED
        self.counts[outcome] += 1
        if outcome == REFUSED:
            self._limit.warning("refused", self._now_s(), f"condition of node {node}: the API server answers {status}")
        return True

    def _note_retry(self, problem: str) -> None:
        self.counts[RETRIED] += 1
        self._limit.warning("retried", self._now_s(), f"node conditions: {problem}, trying again")

    async def _wait_or_stop(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


_GONE = NodeCondition(is_slow=False, message="No rank runs on this node.")


def make_node_patcher(
    config: "CoordinatorConfig", runs: "Runs", leadership: "Leadership", now_s: Callable[[], float]
) -> NodePatcher | None:
    """Return the node patcher; None if no API server is configured. Blocking.

    Raises
    ------
    ConfigError
        A file of credentials cannot be used.
    """
    if not config.kubernetes_api_url:
        return None
    server = ApiServer(
        url=config.kubernetes_api_url, token_file=config.kubernetes_token_file, ca_file=config.kubernetes_ca_file
    )
    server.headers()
    server.context()
    return NodePatcher(server, runs, leadership, now_s=now_s)
