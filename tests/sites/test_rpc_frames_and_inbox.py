"""Authentication and authorisation of calls, and refusal of invalid frames."""

import os
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf import descriptor_pb2
from trial_federation import Trial, ended, make_trial

import siafu
from siafu.comm.message_frames import CHUNK_BYTES, ChunkHead, FrameKind, MessageInfo, pack_chunk_head
from siafu.comm.transport import Envelope, MessageKind
from siafu.graph import Graph
from siafu.launch.sites.config import SiteConfig, read_config
from siafu.launch.sites.frame_stream import FrameDecoder, FrameEncoder
from siafu.launch.sites.rpc import CallFailed, SiteConnection, SiteServer, TrustedPeers
from siafu.launch.sites.schema import MAX_MESSAGE_BYTES, PROTOCOL, BadMessage, make, pack, unpack
from siafu.launch.sites.site_inbox import SiteInbox
from siafu.sites.credentials import SiteCredentials
from siafu.sites.provisioning import read_authority
from siafu.sites.service import SiteService
from siafu.wire import frames as wire_frames
from siafu.wire.certificates import (
    Authority,
    _sign,
    issue,
    make_authority,
    make_key,
    parse_certificate,
    read_identity,
    write_key,
)
from siafu.wire.frames import FrameError
from siafu.wire.tls import Certificate

MANY = 10_000
CONFIG = 'engine = "sites"\nmethod = "lazy"\nranks = 2\n'


@pytest.fixture
def trial(graph: Graph, tmp_path: Path) -> Iterator[Trial]:
    """One site that serves."""
    with ended(make_trial(tmp_path / "sites", graph)) as made:
        made.serve("a")
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls got as far as a site's answers, where what they carry is read."""
    got: list[str] = []
    for name in ("describe", "begin", "follow", "stop", "exchange"):
        answer = getattr(SiteService, name)
        monkeypatch.setattr(
            SiteService, name, lambda *args, _n=name, _a=answer: (got.append(_n), _a(*args))[1]
        )
    return got


def identity_of(trial: Trial, name: str) -> Certificate:
    return read_identity(trial.folder / name / "site.pem", trial.folder / name / "site.key")


def dial(trial: Trial, identity: Certificate, *, pin: str = "a") -> SiteConnection:
    pins = (parse_certificate((trial.folder / pin / "site.pem").read_bytes(), pin),)
    return SiteConnection(trial.addresses["a"], "a", pins, identity)


def made_by(
    trial: Trial, folder: Path, *, days: float = 1, own_authority: bool = True, name: str = "b"
) -> Certificate:
    """A certificate that no site lists."""
    key = make_key()
    folder.mkdir()
    write_key(key, folder / "key")
    authority = read_authority(trial.folder / "authority") if own_authority else make_authority()
    return Certificate(
        issue(name, key.public_key(), authority, None, days=days), (folder / "key").read_bytes()
    )


def ask() -> bytes:
    return pack(make("Ask", protocol=PROTOCOL, version="0", time=0.0))


@pytest.mark.parametrize("who", ["unlisted", "of another authority", "expired", "without one"])
def test_a_caller_without_the_right_certificate_is_refused_before_a_payload_is_read(
    who: str, trial: Trial, asked: list[str], tmp_path: Path
) -> None:
    nothing = Certificate(b"", b"")
    match who:
        case "unlisted":
            identity = made_by(trial, tmp_path / "made")
        case "of another authority":
            identity = made_by(trial, tmp_path / "made", own_authority=False)
        case "expired":
            identity = made_by(trial, tmp_path / "made", days=-0.01)
            (trial.folder / "a" / "peers" / "b.pem").write_bytes(identity.certificate)  # listed, but too old
        case _:
            identity = nothing
    connection = dial(trial, identity)
    with pytest.raises(CallFailed, match=r"ended the connection|cannot be reached"):
        connection.ask("Describe", ask(), timeout_s=10)
    connection.close()
    assert asked == []


def test_a_server_with_an_unlisted_certificate_is_not_called(trial: Trial, asked: list[str]) -> None:
    connection = dial(trial, identity_of(trial, "coordinator"), pin="c")
    with pytest.raises(CallFailed, match="another"):
        connection.ask("Describe", ask(), timeout_s=10)
    connection.close()
    assert asked == []


def signed_by(signer: Certificate, *, name: str = "b") -> Certificate:
    """A leaf that a site signed with the key of its own certificate, as if that were an authority's."""
    key = make_key()
    own = x509.load_pem_x509_certificate(signer.certificate)
    authority = Authority(serialization.load_pem_private_key(signer.key, None), own)
    return Certificate(issue(name, key.public_key(), authority, None) + signer.certificate, private_pem(key))


def authority_named(name: str) -> Certificate:
    """A certificate in a site's name that may sign others."""
    key = make_key()
    made = _sign(name, key.public_key(), None, key, 1, authority=True)
    return Certificate(made.public_bytes(Encoding.PEM), private_pem(key))


def private_pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())


def test_a_certificate_signed_by_a_listed_site_is_refused_in_the_handshake(
    trial: Trial, asked: list[str]
) -> None:
    connection = dial(trial, signed_by(identity_of(trial, "coordinator"), name="coordinator"))
    with pytest.raises(CallFailed, match=r"ended the connection|cannot be reached"):
        connection.ask("Describe", ask(), timeout_s=10)
    connection.close()
    assert asked == []
    assert not any("may not make" in text for text in trial.said["a"])  # it never came as far as a call


def test_a_server_with_a_certificate_signed_by_the_listed_one_is_not_called(
    trial: Trial, asked: list[str]
) -> None:
    listed = TrustedPeers(
        {"coordinator": (parse_certificate(identity_of(trial, "coordinator").certificate, "coordinator"),)}
    )
    identity = signed_by(identity_of(trial, "a"), name="a")
    server = SiteServer("127.0.0.1:0", trial.served["a"][0], lambda: (identity, listed), refused=print)
    pins = (parse_certificate((trial.folder / "a" / "site.pem").read_bytes(), "a"),)
    connection = SiteConnection(server.address, "a", pins, identity_of(trial, "coordinator"))
    with pytest.raises(CallFailed, match="another certificate than the one that is listed"):
        connection.ask("Describe", ask(), timeout_s=10)
    connection.close()
    server.stop()
    assert asked == []


def test_a_certificate_that_can_sign_others_is_refused_as_a_peer(trial: Trial) -> None:
    (trial.folder / "a" / "peers" / "b.pem").write_bytes(authority_named("b").certificate)
    config = read_config(trial.folder / "a" / "site.toml", SiteConfig)
    with pytest.raises(ValueError, match=r"b.pem: may sign certificates of others.*CA:FALSE"):
        SiteCredentials(config)


def test_tls_before_1_3_is_not_negotiated(trial: Trial, tmp_path: Path) -> None:
    host, _, port = trial.addresses["a"].rpartition(":")
    versions = []
    for most in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, most
        context.load_cert_chain(trial.folder / "b" / "site.pem", trial.folder / "b" / "site.key")
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((host, int(port)), timeout=10) as sock,
                context.wrap_socket(sock) as secure,
            ):
                versions.append(secure.version())
        except OSError:
            versions.append(None)
    assert versions == [None, "TLSv1.3"]


def test_each_party_may_make_only_its_own_calls(trial: Trial, asked: list[str]) -> None:
    for name, method in (("b", "Describe"), ("b", "Stop")):
        connection = dial(trial, identity_of(trial, name))
        with pytest.raises(CallFailed, match="may not make this call"):
            connection.ask(method, ask(), timeout_s=10)
        connection.close()
    connection = dial(trial, identity_of(trial, "coordinator"))
    with pytest.raises(CallFailed, match="may not make this call"):
        list(connection.exchange(iter([b"hello"])))
    connection.close()
    assert asked == []
    assert any("b that it may not make" in text for text in trial.said["a"])


def test_another_version_is_refused_with_the_version_of_the_site(trial: Trial) -> None:
    connection = dial(trial, identity_of(trial, "coordinator"))
    with pytest.raises(CallFailed, match="you run 0; use the same"):
        connection.ask("Describe", ask(), timeout_s=10)
    connection.close()


def good_frames() -> list[bytes]:
    frames, values = FrameEncoder(), torch.arange(600_000, dtype=torch.float32)
    messages = [
        frames.message(Envelope(MessageKind.COLLECTIVE, 7, number, "halo 1"), values[:5])
        for number in range(3)
    ]
    return [
        *(frame for message in messages for frame in message),
        *frames.message(Envelope(MessageKind.DIRECT, 7, 9, "weights"), values),
    ]


def message_of(num_numbers: int) -> bytes:
    """The first frame of a message that says that it is so large."""
    info = MessageInfo(4 * num_numbers, torch.float32, (num_numbers,), "halo 1")
    return wire_frames.pack(FrameKind.COLLECTIVE, 0, pack_chunk_head(ChunkHead(7, 0, 0, info)))


def bad_frames(rng: random.Random) -> Iterator[list[bytes]]:
    """Frames that end in one that nobody should send."""
    good = good_frames()
    first = good[0]
    while True:
        yield [rng.randbytes(rng.randrange(1, 200))]
        yield [first[: rng.randrange(1, len(first))]]
        yield [first, first]  # replayed
        yield [good[1]]  # out of order
        at = rng.randrange(len(first))
        yield [first[:at] + bytes([first[at] ^ (1 << rng.randrange(8))]) + first[at + 1 :], first]
        yield [b"\0" * (MAX_MESSAGE_BYTES + 1)]
        yield [message_of(1 << rng.randrange(31, 60))]
        yield [wire_frames.pack(rng.choice([0, 3, 4, *range(7, 256)]), 0, bytes(24))]
        yield [first + b"more"]
        yield [*good[:4], good[5]]  # a piece is missing


def test_ten_thousand_bad_frames_are_refused_without_using_memory() -> None:
    rng, process = random.Random(0), psutil.Process(os.getpid())
    made = bad_frames(rng)
    before, refused = process.memory_info().rss, 0
    for _ in range(MANY):
        frames = FrameDecoder(1, inbox := SiteInbox(most_bytes=1 << 26))
        try:
            for data in next(made):
                frames.take(data)
        except FrameError:
            refused += 1
        assert inbox.unexpected(1)[1] <= 4 * CHUNK_BYTES
    assert refused == MANY
    assert process.memory_info().rss - before < 100e6


def test_frames_of_a_listed_site_without_an_attempt_are_refused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.sites.service._MEET_S", 0.05)
    rng, connection = random.Random(1), dial(trial, identity_of(trial, "b"))
    made = bad_frames(rng)
    for _ in range(40):
        with pytest.raises(CallFailed):
            list(connection.exchange(iter(next(made))))
    hello = pack(make("Hello", protocol=PROTOCOL, version="0.1.0", attempt=b"x" * 16))
    with pytest.raises(CallFailed, match="no such attempt"):
        list(connection.exchange(iter([hello, *good_frames()])))
    connection.close()
    site = trial.served["a"][0]
    assert site._attempt is None
    assert site.ledger.totals.all == 0  # and nothing left


def test_bad_frames_within_an_attempt_end_only_that_attempt(trial: Trial) -> None:
    site = trial.served["a"][0]
    coordinator, peer = dial(trial, identity_of(trial, "coordinator")), dial(trial, identity_of(trial, "b"))
    members = [make("Member", name=name, address="127.0.0.1:1") for name in ("a", "b")]
    for number, frames in enumerate(islice(bad_frames(random.Random(2)), 9)):
        name = bytes([number]) * 16
        order = make("Order", attempt=name, run="r", config=CONFIG, members=members)
        coordinator.give("Begin", iter([pack(order)]), timeout_s=60)
        hello = make("Hello", protocol=PROTOCOL, version=siafu.__version__, attempt=name)
        with suppress(CallFailed):
            list(peer.exchange(iter([pack(hello), *frames])))
        assert site._attempt is not None
        assert site._attempt.wait(60)
        assert (site._attempt.state, site._attempt.blames) == ("failed", "b")
    for connection in (coordinator, peer):
        connection.close()
    assert set(site.ledger.totals.by_what) <= {"control", "ids"}  # it had greeted, and begun to ask


def test_an_order_with_an_unlisted_address_is_refused_and_no_call_is_made(trial: Trial) -> None:
    coordinator = dial(trial, identity_of(trial, "coordinator"))
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        addresses = {"b": f"127.0.0.1:{elsewhere.getsockname()[1]}", "a": trial.addresses["a"]}
        members = [make("Member", name=name, address=address) for name, address in addresses.items()]
        order = make("Order", attempt=b"x" * 16, run="r", config=CONFIG, members=members)
        with pytest.raises(CallFailed, match=r"a does not call b at '127\.0\.0\.1:"):
            coordinator.give("Begin", iter([pack(order)]), timeout_s=60)
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    coordinator.close()
    assert trial.served["a"][0]._attempt is None


def test_reserved_fields_for_secure_aggregation_are_refused() -> None:
    order = make("Order", run="r")
    for field in (30, 39):
        tagged = bytes([(field << 3) & 127 | 128, field >> 4])  # a number follows
        with pytest.raises(BadMessage, match="fields that this version does not know"):
            unpack("Order", pack(order) + tagged + b"\x01")
    described = descriptor_pb2.DescriptorProto()
    order.DESCRIPTOR.CopyToProto(described)
    assert [(each.start, each.end) for each in described.reserved_range] == [(30, 40)]


def test_unexpected_messages_of_a_peer_are_limited_in_bytes() -> None:
    inbox, frames = SiteInbox(most_bytes=10_000), FrameEncoder()
    incoming = FrameDecoder(1, inbox)
    values = torch.zeros(1000)
    sent = [
        frames.message(Envelope(MessageKind.COLLECTIVE, 1, number, "halo 1"), values)[0]
        for number in range(3)
    ]
    for data in sent[:2]:
        incoming.take(data)
    with pytest.raises(FrameError, match="at most 10000"):
        incoming.take(sent[2])
    assert inbox.unexpected(1) == (2, 8000)


def test_unexpected_empty_messages_count_towards_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(inbox: SiteInbox) -> int:
        frames, incoming = FrameEncoder(), FrameDecoder(1, inbox)
        for number in range(20):
            envelope = Envelope(MessageKind.COLLECTIVE, 1, number, "halo 1")
            try:
                incoming.take(frames.message(envelope, torch.empty(0))[0])
            except FrameError:
                return number
        return 20

    assert taken(SiteInbox(most_bytes=10 * 1024)) == 10
    monkeypatch.setattr("siafu.launch.sites.site_inbox.MAX_UNEXPECTED", 7)
    inbox = SiteInbox(most_bytes=1 << 30)
    assert taken(inbox) == 7
    inbox.start_receive(1, Envelope(MessageKind.COLLECTIVE, 1, 3, "halo 1"), None)
    assert inbox.unexpected(1) == (6, 6 * 1024)


def test_no_frame_is_accepted_after_the_last_one() -> None:
    frames, incoming = FrameEncoder(), FrameDecoder(1, SiteInbox(most_bytes=1 << 20))
    assert incoming.take(frames.control(FrameKind.CLOSE)) == FrameKind.CLOSE
    with pytest.raises(FrameError, match="after the one that said farewell"):
        incoming.take(frames.control(FrameKind.CLOSE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_received_nan_and_infinity_are_refused(bad: float, dtype: torch.dtype) -> None:
    frames, inbox = FrameEncoder(), SiteInbox(most_bytes=1 << 20)
    values, envelope = torch.zeros(3, 4, dtype=dtype), Envelope(MessageKind.COLLECTIVE, 1, 0, "gradients 1")
    values[1, 2] = bad
    with pytest.raises(FrameError, match='NaN or infinite numbers in "gradients 1"'):
        FrameDecoder(1, inbox).take(frames.message(envelope, values)[0])
    assert not inbox.start_receive(1, envelope, None).done.is_set()
