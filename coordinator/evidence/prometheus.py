"""Client for instant queries to Prometheus or a server with the same HTTP API, with deadline and size limit.

Responses are untrusted and are validated before use. Credentials are read from files, sent to the configured address
only (redirects are refused), and never appear in a message.
"""

import asyncio
import math
import ssl
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import aiohttp
import msgspec

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import EVIDENCE_OUTCOMES
from lockstep.serving.secret_file import read_secret

ANSWERED, EMPTY, TIMEOUT, UNREACHABLE, REFUSED, MALFORMED, TOO_LARGE = EVIDENCE_OUTCOMES
ANSWER_MAX_BYTES = 1 << 20
"""Largest response; forty devices with twenty labels each take 40 KB."""
CONNECTIONS_MAX = 8
_SERIES_MAX = 2_000
_CHUNK_BYTES = 1 << 16
_OK, _REDIRECT = 200, 300

Text = Annotated[str, msgspec.Meta(max_length=1024)]


class _Sample(msgspec.Struct):
    metric: Annotated[dict[Text, Text], msgspec.Meta(max_length=128)]
    value: tuple[float, Text]


class _Data(msgspec.Struct, rename="camel"):
    result_type: Text
    result: Annotated[list[_Sample], msgspec.Meta(max_length=_SERIES_MAX)]


class _Answer(msgspec.Struct):
    status: Text
    data: _Data


@dataclass(frozen=True, slots=True)
class InstantSeries:
    """One series of an instant vector; `value` is None if it is not a finite number."""

    labels: Mapping[str, str]
    value: float | None


class QueryError(Exception):
    """A query without a usable response; `outcome` is one of `EVIDENCE_OUTCOMES`."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The URL of a Prometheus and the files of its credentials: a bearer token, or `user:password`; empty if none."""

    url: str
    token_file: str = ""
    password_file: str = ""
    ca_file: str = ""

    def headers(self) -> dict[str, str]:
        """Return the header with the current credentials from the files; blocking.

        Raises
        ------
        ConfigError
            A file cannot be read, or its content is not valid in a header. The message does not contain any of it.
        """
        if self.token_file:
            return {"Authorization": f"Bearer {read_secret(self.token_file, 'evidence_token_file')}"}
        if self.password_file:
            secret = read_secret(self.password_file, "evidence_password_file").encode()
            return {"Authorization": f"Basic {b64encode(secret).decode()}"}
        return {}

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context that checks the server's certificate; blocking.

        Raises
        ------
        ConfigError
            The CA file cannot be used.
        """
        if not self.ca_file:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"evidence_ca_file: got {self.ca_file!r}, expected certificates: {error}") from None


class PrometheusClient:
    """Queries one Prometheus. `counts` holds the queries by outcome, since the start of the coordinator."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._url = f"{access.url.rstrip('/')}/api/v1/query"
        self.counts: Counter[str] = Counter(dict.fromkeys(EVIDENCE_OUTCOMES, 0))

    @asynccontextmanager
    async def session(
        self, _hosts: object = None, _start_s: float = 0.0, _end_s: float = 0.0
    ) -> "AsyncIterator[QuerySession]":
        """Open connections for one reading and close them afterwards.

        The arguments are unused: Prometheus has all hosts.

        Raises
        ------
        ConfigError
            A file of credentials cannot be used now.
        """
        headers = await asyncio.to_thread(self._access.headers)
        context = await asyncio.to_thread(self._access.context)
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=context)
        headers["Accept-Encoding"] = "identity"  # the limit would not bound a compressed response once decompressed
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout, auto_decompress=False
        ) as session:
            yield QuerySession(session, self._url, self.counts)


class QuerySession:
    """Open connections to a Prometheus. `failures` is empty: only queries fail here, and they raise."""

    failures: Mapping[str, int] = MappingProxyType({})

    def __init__(self, session: aiohttp.ClientSession, url: str, counts: Counter[str]) -> None:
        self._session = session
        self._url = url
        self._counts = counts

    async def query(self, expression: str, at_unix_s: float, timeout_s: float) -> list[InstantSeries]:
        """Return the instant vector of an expression at a time.

        Raises
        ------
        QueryError
            There is no usable response within `timeout_s`. Every query is counted by its outcome.
        """
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                body = await self._fetch(expression, at_unix_s, timeout_s)
            series = parse_answer(body)
        except TimeoutError:
            self._counts[TIMEOUT] += 1
            raise QueryError(TIMEOUT) from None
        except QueryError as error:
            self._counts[error.outcome] += 1
            raise
        except (aiohttp.ClientError, OSError):  # the error's text may contain the URL with its credentials
            self._counts[UNREACHABLE] += 1
            raise QueryError(UNREACHABLE) from None
        self._counts[ANSWERED if series else EMPTY] += 1
        return series

    async def _fetch(self, expression: str, at_unix_s: float, timeout_s: float) -> bytes:
        form = {"query": expression, "time": f"{at_unix_s:.3f}", "timeout": f"{max(timeout_s, 0.001):.3f}"}
        async with self._session.post(self._url, data=form, allow_redirects=False) as answer:
            if answer.status != _OK:
                raise QueryError(REFUSED)
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > ANSWER_MAX_BYTES:
                    raise QueryError(TOO_LARGE)
            return bytes(body)


def parse_answer(body: bytes) -> list[InstantSeries]:
    """Return the series of a response of the HTTP API.

    Raises
    ------
    QueryError
        It is not an instant vector.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise QueryError(MALFORMED) from None
    if answer.status != "success" or answer.data.result_type != "vector":
        raise QueryError(MALFORMED)
    return [InstantSeries(sample.metric, _number(sample.value[1])) for sample in answer.data.result]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
