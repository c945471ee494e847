"""Periodically reads the pages of other exporters on this node, and the Inspector's sums, within deadlines and bounds.

Addresses come from the configuration alone, and redirects are refused. Responses are checked line by line. A slow,
absent or hostile exporter costs one count and its own samples.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from exporter.neighbours.inspector_series import InspectorSums, inspector_samples
from exporter.neighbours.sample_history import SampleHistory
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.neighbour_series import NEIGHBOUR_OUTCOMES
from lockstep.serving.secret_file import read_secret

if TYPE_CHECKING:
    from exporter.config import ExporterConfig

_log = logging.getLogger(__name__)

DEADLINE_S = 3.0
PAGE_MAX_BYTES = 8 << 20
"""Size of one page; node_exporter on a large host has 1 MB."""
KEPT_SECONDS = 1800.0
"""How long samples are kept: a comparison begins ten minutes before an onset, which is known minutes after it."""
_CHUNK_BYTES = 1 << 16
_OK = 200
_ANSWERED, _TIMEOUT, _UNREACHABLE, _REFUSED, _MALFORMED, _TOO_LARGE = NEIGHBOUR_OUTCOMES


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourStatus:
    """Readings by outcome, and the number of stored series; empty and None without pages and Inspectors."""

    readings: Mapping[str, int] = field(default_factory=dict)
    series_count: int | None = None


class NeighbourReader:
    """Reads all configured addresses, and the Inspectors' sums that `inspected` returns; each is a page of its own."""

    def __init__(self, config: "ExporterConfig", inspected: Callable[[], InspectorSums] = dict) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(NEIGHBOUR_OUTCOMES, 0))
        self._token_file = config.neighbour_token_file
        self._seconds = config.neighbour_seconds
        samples_max = max(2, round(KEPT_SECONDS / self._seconds))
        urls = neighbour_urls(config.neighbour_addresses)
        self._pages = {url: SampleHistory(config.node_name, samples_max=samples_max) for url in urls}
        self._node_name = config.node_name
        self._inspected = inspected
        self._inspector_page = SampleHistory(config.node_name, samples_max=samples_max)
        self._token_error = ""

    def check(self) -> None:
        """Read the token once, if there are pages that need it; blocking.

        Raises
        ------
        ConfigError
            The file of the token cannot be used.
        """
        if self._pages and self._token_file:
            self._read_token()

    def status(self) -> NeighbourStatus:
        """Return a copy of all counts."""
        if not self._pages and not self._inspector_page.series_count:
            return NeighbourStatus()
        return NeighbourStatus(
            readings=dict(self._counts), series_count=sum(page.series_count for page in self._pages.values())
        )

    async def run(self) -> None:
        """Read all pages at each interval until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            while True:
                next_s = time.monotonic() + self._seconds
                self._add_inspected(time.time())
                await asyncio.gather(*(self._read(session, url, page) for url, page in self._pages.items()))
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    def _add_inspected(self, unix_s: float) -> None:
        found = inspector_samples(self._inspected(), self._node_name)
        if (found or self._inspector_page.series_count) and self._inspector_page.add_samples(found, unix_s):
            self._counts[_TOO_LARGE] += 1

    async def _read(self, session: aiohttp.ClientSession, url: str, page: SampleHistory) -> None:
        try:
            outcome = await self._fetch(session, url, page)
        except TimeoutError:
            outcome = _TIMEOUT
        except ConfigError as error:
            self._report_token(str(error))
            outcome = _UNREACHABLE
        except (aiohttp.ClientError, OSError):  # its text may quote secrets of the address
            outcome = _UNREACHABLE
        self._counts[outcome] += 1
        if outcome != _ANSWERED:
            _log.debug("neighbour %s: %s", url, outcome)

    async def _fetch(self, session: aiohttp.ClientSession, url: str, page: SampleHistory) -> str:
        headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        if self._token_file:
            headers["Authorization"] = f"Bearer {await asyncio.to_thread(self._read_token)}"
            self._report_token("")
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != _OK:
                return _REFUSED
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > PAGE_MAX_BYTES:
                    return _TOO_LARGE
        malformed, omitted = await asyncio.to_thread(page.add, body.decode(errors="replace"), time.time())
        if malformed:
            return _MALFORMED
        return _TOO_LARGE if omitted else _ANSWERED

    def _read_token(self) -> str:
        return read_secret(self._token_file, "neighbour_token_file")

    def _report_token(self, error: str) -> None:
        """Log why the token cannot be used, once until it can."""
        if error and error != self._token_error:
            _log.warning("%s", error)
        self._token_error = error

    def between(self, start_s: float, end_s: float) -> bytes:
        """Return the samples stored between `start_s` and `end_s`, unix seconds, as JSON."""
        own = (self._inspector_page,) if self._inspector_page.series_count else ()
        pages = [page.between(start_s, end_s) for page in (*self._pages.values(), *own)]
        return json.dumps({"pages": pages}, separators=(",", ":")).encode()


def neighbour_urls(addresses: str) -> list[str]:
    """Return the addresses of a comma-separated list."""
    return [url.strip() for url in addresses.split(",") if url.strip()]
