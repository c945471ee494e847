"""Fetches the samples that exporters have stored of other exporters on their node, for one reading.

It answers the same queries as Prometheus (`samples.py`). The address of an exporter is in its heartbeat. Credentials
are those of the configuration. Responses are limited in size and validated before use.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Annotated

import aiohttp
import msgspec

from coordinator.evidence.machines import Machine
from coordinator.evidence.prometheus import (
    ANSWERED,
    CONNECTIONS_MAX,
    EMPTY,
    MALFORMED,
    REFUSED,
    TIMEOUT,
    TOO_LARGE,
    UNREACHABLE,
    Access,
    InstantSeries,
    QueryError,
    Text,
)
from coordinator.evidence.promql import PromqlError, parse_promql
from coordinator.evidence.samples import SampledSeries, SampleStore
from lockstep.contracts.metric import EVIDENCE_OUTCOMES
from lockstep.contracts.neighbour_series import NEIGHBOURS_MAX_BYTES, NEIGHBOURS_PATH

FETCH_S = 2.0
"""Time to fetch from all nodes in parallel, of the three seconds of a reading."""
_SAMPLES_MAX, _SERIES_MAX, _PAGES_MAX = 4_000, 4_000, 16
_CHUNK_BYTES = 1 << 16
_OK = 200


class _Series(msgspec.Struct):
    labels: Annotated[dict[Text, Text], msgspec.Meta(max_length=64)]
    values: Annotated[list[float | None], msgspec.Meta(max_length=_SAMPLES_MAX)]


class _Page(msgspec.Struct):
    times_s: Annotated[list[float], msgspec.Meta(max_length=_SAMPLES_MAX)]
    series: Annotated[list[_Series], msgspec.Meta(max_length=_SERIES_MAX)]


class _NodeAnswer(msgspec.Struct):
    pages: Annotated[list[_Page], msgspec.Meta(max_length=_PAGES_MAX)]


class NodeSamplesClient:
    """Reads from nodes' exporters; `url_of` returns the URL of a node's exporter, None if unknown.

    `counts` holds queries and failed nodes, by outcome.
    """

    def __init__(self, access: Access, url_of: Callable[[str], str | None]) -> None:
        self._access = access
        self._url_of = url_of
        self.counts: Counter[str] = Counter(dict.fromkeys(EVIDENCE_OUTCOMES, 0))

    @asynccontextmanager
    async def session(self, hosts: tuple[Machine, ...], start_s: float, end_s: float) -> "AsyncIterator[SampleSession]":
        """Fetch the samples of the hosts' exporters between two unix times.

        Raises
        ------
        ConfigError
            A file of credentials cannot be used now.
        """
        headers = await asyncio.to_thread(self._access.headers)
        context = await asyncio.to_thread(self._access.context)
        headers["Accept-Encoding"] = "identity"
        urls = {url for host in hosts for name in host.hosts if (url := self._url_of(name)) is not None}
        parameters = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        failures: Counter[str] = Counter()
        series: list[SampledSeries] = []
        timeout = aiohttp.ClientTimeout(total=FETCH_S)
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=context)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout, auto_decompress=False
        ) as session:
            for each in await asyncio.gather(*(_fetch(session, url, parameters) for url in sorted(urls))):
                if isinstance(each, str):
                    failures[each] += 1
                else:
                    series += each
        self.counts.update(failures)
        yield SampleSession(SampleStore(series), self.counts, failures)


class SampleSession:
    """Samples of one reading; `failures` counts the nodes that failed, by outcome."""

    def __init__(self, store: SampleStore, counts: Counter[str], failures: Counter[str]) -> None:
        self.failures = failures
        self._store = store
        self._counts = counts

    async def query(self, expression: str, at_unix_s: float, timeout_s: float) -> list[InstantSeries]:
        """Return the instant vector of an expression at a time; see `QuerySession.query`."""
        if timeout_s <= 0:
            self._counts[TIMEOUT] += 1
            raise QueryError(TIMEOUT)
        try:
            found = await asyncio.to_thread(lambda: self._store.query(parse_promql(expression), at_unix_s))
        except PromqlError:
            self._counts[REFUSED] += 1
            raise QueryError(REFUSED) from None
        self._counts[ANSWERED if found else EMPTY] += 1
        return found


async def _fetch(session: aiohttp.ClientSession, url: str, parameters: dict[str, str]) -> list[SampledSeries] | str:
    """Return the series of a node, or the outcome if it failed."""
    try:
        async with session.get(url + NEIGHBOURS_PATH, params=parameters, allow_redirects=False) as answer:
            if answer.status != _OK:
                return REFUSED
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > NEIGHBOURS_MAX_BYTES:
                    return TOO_LARGE
        return await asyncio.to_thread(parse_samples, bytes(body))
    except TimeoutError:
        return TIMEOUT
    except QueryError as error:
        return error.outcome
    except (aiohttp.ClientError, OSError):
        return UNREACHABLE


def parse_samples(body: bytes) -> list[SampledSeries]:
    """Return the series of an exporter's response.

    Raises
    ------
    QueryError
        It is malformed, its times do not ascend, or a series has another number of values than times.
    """
    try:
        answer = msgspec.json.decode(body, type=_NodeAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise QueryError(MALFORMED) from None
    found = []
    for page in answer.pages:
        times = page.times_s
        if any(now <= before for before, now in pairwise(times)):
            raise QueryError(MALFORMED)
        for series in page.series:
            if len(series.values) != len(times):
                raise QueryError(MALFORMED)
            known = [(at, value) for at, value in zip(times, series.values, strict=True) if value is not None]
            known = [(at, value) for at, value in known if math.isfinite(value)]
            labels = tuple(sorted(series.labels.items()))
            found.append(SampledSeries(labels, [at for at, _ in known], [value for _, value in known]))
    return found
