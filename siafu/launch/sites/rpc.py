"""Calls between sites over mutually authenticated TLS 1.3, by gRPC: the one file that names it. Bytes in, bytes out.

Who is not listed is refused in the handshake: each side trusts nothing but the listed certificates themselves. Who is
listed is known by its certificate, and may make only the calls that are its own. A call is refused before a byte of
what it carries is looked at, and gRPC reads no message that is longer than allowed.
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

# Ciphers of TLS before 1.3 that need an RSA key, which no site has: so nothing before 1.3 can be agreed on.
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
    ("grpc.http2.bdp_probe", 0),  # which would answer every message with a ping
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
]


class CallFailed(ConnectionError):
    """A call that was not answered; ``refused`` where the other side said why."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class NotNow(Exception):
    """The server does not answer this call; its text is told to the caller. ``busy`` where it may do so later."""

    def __init__(self, text: str, *, busy: bool = False) -> None:
        super().__init__(text)
        self.busy = busy


class Service(Protocol):
    """What a site answers; ``peer`` is who called, as its certificate says."""

    def describe(self, data: bytes) -> bytes:
        """What is here."""
        ...

    def begin(self, pieces: Iterator[bytes]) -> bytes:
        """Begin a part of a run."""
        ...

    def follow(self, data: bytes, is_active: Callable[[], bool]) -> Iterator[bytes]:
        """How it goes on."""
        ...

    def stop(self, data: bytes) -> bytes:
        """End it."""
        ...

    def exchange(self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]) -> Iterator[bytes]:
        """Frames from and to another site."""
        ...


@dataclass(frozen=True)
class Listed:
    """Who may call: the certificates of each, by name."""

    pins: Mapping[str, tuple[SiteCertificate, ...]]

    @property
    def roots(self) -> bytes:
        """All of them, PEM."""
        return b"".join(pin.pem for pins in self.pins.values() for pin in pins)

    def name_of(self, fingerprint: str) -> str | None:
        """Whose certificate it is."""
        for name, pins in self.pins.items():
            if any(pin.fingerprint == fingerprint for pin in pins):
                return name
        return None


class Server:
    """Answers calls at an address, until it is stopped.

    ``credentials`` is asked at every handshake, so that keys and lists may change while it runs.
    """

    def __init__(
        self,
        listen: str,
        service: Service,
        credentials: Callable[[], tuple[Certificate, Listed]],
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
        self._server.add_generic_rpc_handlers((_handlers(grpc, service, self._who),))
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
        """Answer no more; calls under way are cut off."""
        self._server.stop(0).wait(10)

    def _who(self, context: Any, *, coordinator: bool) -> str:
        """Who calls; ends the call of who may not make it, before anything that it carries is read."""
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
            self._refused(f"a call by {name or 'somebody who is not listed'} that it may not make")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "you may not make this call")
        assert name is not None
        return name


def _handlers(grpc: Any, service: Service, who: Callable[..., str]) -> Any:
    def answered(call: Callable[[], bytes], context: Any) -> bytes:
        try:
            return call()
        except BadMessage:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of the schema")
        except NotNow as error:
            context.abort(_code(grpc, error), str(error))
        raise AssertionError

    def describe(data: bytes, context: Any) -> bytes:
        who(context, coordinator=True)
        return answered(lambda: service.describe(data), context)

    def begin(pieces: Iterator[bytes], context: Any) -> bytes:
        who(context, coordinator=True)
        return answered(lambda: service.begin(pieces), context)

    def stop(data: bytes, context: Any) -> bytes:
        who(context, coordinator=True)
        return answered(lambda: service.stop(data), context)

    def follow(data: bytes, context: Any) -> Iterator[bytes]:
        who(context, coordinator=True)
        return _streamed(grpc, context, lambda: service.follow(data, context.is_active))

    def exchange(incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        peer = who(context, coordinator=False)
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
    except NotNow as error:
        context.abort(_code(grpc, error), str(error))


def _code(grpc: Any, error: NotNow) -> Any:
    return grpc.StatusCode.UNAVAILABLE if error.busy else grpc.StatusCode.FAILED_PRECONDITION


class SiteConnection:
    """A connection to one site, made when it is first needed and again when it was lost."""

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
        """One message there and one back; raises CallFailed."""
        with self._told():
            return self._channel.unary_unary(_SERVICE + method)(data, timeout=timeout_s)

    def give(self, method: str, pieces: Iterator[bytes], *, timeout_s: float) -> bytes:
        """Many messages there and one back; raises CallFailed."""
        with self._told():
            return self._channel.stream_unary(_SERVICE + method)(pieces, timeout=timeout_s)

    def follow(self, data: bytes) -> "Call":
        """One message there and many back."""
        return Call(self, self._channel.unary_stream(_SERVICE + "Follow")(data))

    def exchange(self, outgoing: Iterator[bytes]) -> "Call":
        """Frames both ways."""
        return Call(self, self._channel.stream_stream(_SERVICE + "Exchange")(outgoing))

    def close(self) -> None:
        """End the connection and all calls."""
        self._channel.close()

    def _told(self) -> "_Told":
        return _Told(self)


class Call:
    """What comes back over a call, message by message; iterating raises CallFailed where it breaks."""

    def __init__(self, dialled: SiteConnection, call: Any) -> None:
        self._dialled, self._call = dialled, call

    def __iter__(self) -> Iterator[bytes]:
        with _Told(self._dialled):
            yield from self._call

    def cancel(self) -> None:
        """Cut it off."""
        self._call.cancel()


class _Told:
    """Makes our error of gRPC's."""

    def __init__(self, dialled: SiteConnection) -> None:
        self._dialled = dialled

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        grpc = _grpc()
        if isinstance(error, grpc.RpcError):
            codes, dialled = grpc.StatusCode, self._dialled
            code = error.code() if hasattr(error, "code") else codes.UNKNOWN
            refused = code in (codes.PERMISSION_DENIED, codes.FAILED_PRECONDITION, codes.INVALID_ARGUMENT)
            details = (error.details() or "") if hasattr(error, "details") else str(error)
            why = details if refused else _plainly(details, code.name)
            text = f"{dialled.name} at {dialled.address}: {why}"
            raise CallFailed(text, refused=refused) from None
        if isinstance(error, ValueError) and "closed channel" in str(error):
            raise CallFailed(f"{self._dialled.name}: the connection was closed", refused=False) from None


def _plainly(details: str, code: str) -> str:
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
    """The package, which reads two settings from the environment alone, when it is first imported."""
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", _NO_EARLIER_TLS)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with require_extra("training among sites", "grpc"):
        return import_module("grpc")
