"""Connections to an MQTT 5 broker: address, TLS, credentials. `mqtt_session.py` handles the traffic on one."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import mqtt5

from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import RETAINED_EXPIRY_SECONDS, BrokerError, OnMessage, Session, Will
from lockstep.serving.mqtt_session import KEEP_ALIVE_S, RECEIVE_MAX, MqttSession

_CONNECT_TIMEOUT_S = (
    10.0  # name, TCP, TLS and the broker's answer; a broker that 10,000 nodes come back to takes seconds
)


class MqttBroker:
    """A `Broker` that speaks MQTT 5; reads password and certificates at each connection, so that they can rotate."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self._config.broker_host}:{self._config.broker_port}"

    @asynccontextmanager
    async def connect(
        self, *, client_id: str, on_message: OnMessage, packet_max_bytes: int, will: Will | None = None
    ) -> AsyncIterator[Session]:
        """See `Broker`."""
        session = await self._open(client_id, on_message, packet_max_bytes, will)
        try:
            yield session
        finally:
            session.abort()

    async def _open(
        self, client_id: str, on_message: OnMessage, packet_max_bytes: int, will: Will | None
    ) -> MqttSession:
        packet = self._connect_packet(client_id, packet_max_bytes, will)
        context = self._tls_context()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, session = await asyncio.get_running_loop().create_connection(
                    lambda: MqttSession(self.address, on_message, packet_max_bytes),
                    self._config.broker_host,
                    self._config.broker_port,
                    ssl=context,
                )
                await session.open(packet)
        except TimeoutError:
            raise self._error(f"no session within {_CONNECT_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: a host name that is invalid in DNS
            raise self._error(f"cannot connect: {error}") from None
        return session

    def _connect_packet(self, client_id: str, packet_max_bytes: int, will: Will | None) -> bytes:
        try:
            mqtt_will = (
                None
                if will is None
                else mqtt5.Will(
                    will.topic,
                    payload=will.payload,
                    qos=mqtt5.QoS.AT_LEAST_ONCE,
                    retain=True,
                    message_expiry_interval=RETAINED_EXPIRY_SECONDS,
                )
            )
            packet = mqtt5.ConnectPacket(
                client_id,
                username=self._config.broker_username or None,
                password=self._read_password(),
                clean_start=True,
                keep_alive=KEEP_ALIVE_S,
                receive_max=RECEIVE_MAX,
                max_packet_size=packet_max_bytes,
                will=mqtt_will,
            )
            return packet.write()
        except ValueError as error:
            raise self._error(f"user name, password or will cannot be sent: {error}") from None

    def _read_password(self) -> bytes | None:
        file = self._config.broker_password_file
        if not file:
            return None
        try:
            return Path(file).read_bytes().strip()
        except OSError as error:
            raise self._error(f"broker_password_file: {error}") from None

    def _tls_context(self) -> ssl.SSLContext | None:
        ca, certificate = self._config.broker_ca_file, self._config.broker_cert_file
        if not ca:
            return None
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise self._error(f"broker_ca_file {ca}: {error}") from None
        if certificate:
            key = self._config.broker_key_file
            try:
                context.load_cert_chain(certificate, key, password="")  # otherwise OpenSSL prompts on the terminal
            except OSError as error:
                raise self._error(f"broker_cert_file {certificate}, broker_key_file {key}: {error}") from None
        return context

    def _error(self, reason: str) -> BrokerError:
        return BrokerError(f"broker {self.address}: {reason}")
