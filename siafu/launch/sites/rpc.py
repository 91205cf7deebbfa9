"""Remote calls between sites: gRPC over mutually authenticated TLS 1.3, bytes in and out. Only this file names gRPC.

Each side trusts only the listed certificates themselves, so the handshake refuses any other caller. A listed caller is
identified by its certificate and may make only the calls that its role allows. A call is refused before its payload is
read, and gRPC reads no message above the size limit.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from siafu.extras import require_extra
from siafu.launch.sites.config import COORDINATOR
from siafu.launch.sites.schema import MAX_MESSAGE_BYTES, BadMessage
from siafu.wire.certificates import SiteCertificate, dns_name, parse_certificate
from siafu.wire.tls import Certificate

# A cipher of earlier TLS versions that needs an RSA key. No site has one, so only TLS 1.3 can be negotiated.
_NO_EARLIER_TLS = "ECDHE-RSA-AES128-GCM-SHA256"
_SERVICE = "/siafu.sites.Site/"
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 8192),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.bdp_probe", 0),  # it would answer every message with a ping
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
]


class CallFailed(ConnectionError):
    """A remote call that failed; ``refused`` if the other side rejected it with a reason."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class CallRejected(Exception):
    """The server rejects a call; the caller gets the text. ``busy`` if a later call may succeed."""

    def __init__(self, text: str, *, busy: bool = False) -> None:
        super().__init__(text)
        self.busy = busy


class SiteProtocol(Protocol):
    """The calls that a site answers; ``peer`` is the name in the caller's certificate."""

    def describe(self, data: bytes) -> bytes:
        """Describe the site. From the coordinator."""
        ...

    def begin(self, pieces: Iterator[bytes]) -> bytes:
        """Begin an attempt. From the coordinator."""
        ...

    def follow(self, data: bytes, is_active: Callable[[], bool]) -> Iterator[bytes]:
        """Yield reports of an attempt. From the coordinator."""
        ...

    def stop(self, data: bytes) -> bytes:
        """End an attempt. From the coordinator."""
        ...

    def exchange(self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]) -> Iterator[bytes]:
        """Exchange frames with another site."""
        ...


@dataclass(frozen=True)
class TrustedPeers:
    """The parties that may call: their certificates, by name."""

    pins: Mapping[str, tuple[SiteCertificate, ...]]

    @property
    def roots(self) -> bytes:
        """All certificates, PEM."""
        return b"".join(pin.pem for pins in self.pins.values() for pin in pins)

    def name_of(self, fingerprint: str) -> str | None:
        """The name of the party that a certificate belongs to, or None."""
        for name, pins in self.pins.items():
            if any(pin.fingerprint == fingerprint for pin in pins):
                return name
        return None


class SiteServer:
    """Answers calls at an address until it is stopped.

    ``credentials`` is called at every handshake, so that keys and trusted peers may change while the server runs.
    """

    def __init__(
        self,
        listen: str,
        service: SiteProtocol,
        credentials: Callable[[], tuple[Certificate, TrustedPeers]],
        *,
        refused: Callable[[str], None],
    ) -> None:
        grpc = _grpc()
        self._credentials, self._refused = credentials, refused

        def current() -> Any:
            identity, listed = credentials()
            pair = (identity.key, identity.certificate)
            return grpc.ssl_server_certificate_configuration([pair], listed.roots)

        callers = len(credentials()[1].pins)
        self._server = grpc.server(
            ThreadPoolExecutor(16 + 4 * callers, thread_name_prefix="siafu-site"),
            options=_OPTIONS,
            maximum_concurrent_rpcs=16 + 4 * callers,
        )
        self._server.add_generic_rpc_handlers((_handlers(grpc, service, self._authenticate),))
        tls = grpc.dynamic_ssl_server_credentials(current(), current, require_client_authentication=True)
        host, _, _ = listen.rpartition(":")
        try:
            port = self._server.add_secure_port(listen, tls)
        except RuntimeError:
            port = 0
        if not port:
            raise ValueError(
                f"cannot listen on {listen}; expected an address of this host with a free port, or port 0"
            )
        self.address = f"{host}:{port}"
        self._server.start()

    def stop(self) -> None:
        """Stop answering; running calls are cut off."""
        self._server.stop(0).wait(10)

    def _authenticate(self, context: Any, *, coordinator: bool) -> str:
        """Return the caller's name; abort a call that it may not make, before its payload is read."""
        grpc = _grpc()
        facts = context.auth_context()
        pem = next(iter(facts.get("x509_pem_cert", [])), b"")
        version = next(iter(facts.get("ssl_tls_version", [])), b"TLSv1.3")
        name = (
            self._credentials()[1].name_of(parse_certificate(pem, "the caller's certificate").fingerprint)
            if pem
            else None
        )
        if name is None or version != b"TLSv1.3" or (name == COORDINATOR) != coordinator:
            self._refused(f"a call by {name or 'an unlisted party'} that it may not make")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "you may not make this call")
        assert name is not None
        return name


def _handlers(grpc: Any, service: SiteProtocol, authenticate: Callable[..., str]) -> Any:
    def answered(call: Callable[[], bytes], context: Any) -> bytes:
        try:
            return call()
        except BadMessage:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of the schema")
        except CallRejected as error:
            context.abort(_code(grpc, error), str(error))
        raise AssertionError

    def describe(data: bytes, context: Any) -> bytes:
        authenticate(context, coordinator=True)
        return answered(lambda: service.describe(data), context)

    def begin(pieces: Iterator[bytes], context: Any) -> bytes:
        authenticate(context, coordinator=True)
        return answered(lambda: service.begin(pieces), context)

    def stop(data: bytes, context: Any) -> bytes:
        authenticate(context, coordinator=True)
        return answered(lambda: service.stop(data), context)

    def follow(data: bytes, context: Any) -> Iterator[bytes]:
        authenticate(context, coordinator=True)
        return _streamed(grpc, context, lambda: service.follow(data, context.is_active))

    def exchange(incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        peer = authenticate(context, coordinator=False)
        return _streamed(grpc, context, lambda: service.exchange(peer, incoming, context.cancel))

    unary, many = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
    methods = {
        "Describe": unary(describe),
        "Begin": many(begin),
        "Stop": unary(stop),
        "Follow": grpc.unary_stream_rpc_method_handler(follow),
        "Exchange": grpc.stream_stream_rpc_method_handler(exchange),
    }
    return grpc.method_handlers_generic_handler("siafu.sites.Site", methods)


def _streamed(grpc: Any, context: Any, call: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    try:
        yield from call()
    except BadMessage:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of the schema")
    except CallRejected as error:
        context.abort(_code(grpc, error), str(error))


def _code(grpc: Any, error: CallRejected) -> Any:
    return grpc.StatusCode.UNAVAILABLE if error.busy else grpc.StatusCode.FAILED_PRECONDITION


class SiteConnection:
    """A connection to one site, opened on first use and opened again after it was lost."""

    def __init__(
        self, address: str, name: str, pins: tuple[SiteCertificate, ...], identity: Certificate
    ) -> None:
        grpc = _grpc()
        self.address, self.name = address, name
        roots = b"".join(pin.pem for pin in pins)
        tls = grpc.ssl_channel_credentials(roots, identity.key, identity.certificate)
        options = [
            *_OPTIONS,
            ("grpc.ssl_target_name_override", dns_name(name)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_retries", 0),
        ]
        self._channel = grpc.secure_channel(address, tls, options=options)

    def ask(self, method: str, data: bytes, *, timeout_s: float) -> bytes:
        """Send one message, receive one (unary call); raises CallFailed."""
        with _TranslatedErrors(self):
            return self._channel.unary_unary(_SERVICE + method)(data, timeout=timeout_s)

    def give(self, method: str, pieces: Iterator[bytes], *, timeout_s: float) -> bytes:
        """Send many messages, receive one (client streaming); raises CallFailed."""
        with _TranslatedErrors(self):
            return self._channel.stream_unary(_SERVICE + method)(pieces, timeout=timeout_s)

    def follow(self, data: bytes) -> "ResponseStream":
        """Send one message, receive many (server streaming)."""
        return ResponseStream(self, self._channel.unary_stream(_SERVICE + "Follow")(data))

    def exchange(self, outgoing: Iterator[bytes]) -> "ResponseStream":
        """Exchange frames with a site (bidirectional streaming)."""
        return ResponseStream(self, self._channel.stream_stream(_SERVICE + "Exchange")(outgoing))

    def close(self) -> None:
        """Close the connection and end all its calls."""
        self._channel.close()


class ResponseStream:
    """The messages that a streaming call returns; iterating raises CallFailed if the call breaks."""

    def __init__(self, connection: SiteConnection, call: Any) -> None:
        self._connection, self._call = connection, call

    def __iter__(self) -> Iterator[bytes]:
        with _TranslatedErrors(self._connection):
            yield from self._call

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class _TranslatedErrors:
    """Turns errors of gRPC into CallFailed."""

    def __init__(self, connection: SiteConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        grpc = _grpc()
        if isinstance(error, grpc.RpcError):
            codes, connection = grpc.StatusCode, self._connection
            code = error.code() if hasattr(error, "code") else codes.UNKNOWN
            refused = code in (codes.PERMISSION_DENIED, codes.FAILED_PRECONDITION, codes.INVALID_ARGUMENT)
            details = (error.details() or "") if hasattr(error, "details") else str(error)
            why = details if refused else _explain_status(details, code.name)
            text = f"{connection.name} at {connection.address}: {why}"
            raise CallFailed(text, refused=refused) from None
        if isinstance(error, ValueError) and "closed channel" in str(error):
            raise CallFailed(f"{self._connection.name}: the connection was closed", refused=False) from None


def _explain_status(details: str, code: str) -> str:
    for found, said in (
        ("certificate has expired", "its certificate has expired"),
        ("CERTIFICATE_VERIFY_FAILED", "it shows another certificate than the one that is listed for it"),
        ("Hostname", "its certificate has another name than the one that is listed for it"),
        ("Connection refused", "nothing listens there"),
        ("Socket closed", "it ended the connection: it was killed, or it does not list our certificate"),
        ("Deadline", "it did not answer in time"),
    ):
        if found in details:
            return said
    return f"it cannot be reached ({code.lower()})"


def _grpc() -> Any:
    """Import gRPC; it reads two settings from the environment when it is first imported."""
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", _NO_EARLIER_TLS)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with require_extra("training among sites", "grpc"):
        return import_module("grpc")
