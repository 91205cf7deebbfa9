"""Who is let in, by which calls, and what becomes of frames that nobody should send."""

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
from federations import Trial, ended, make_trial
from google.protobuf import descriptor_pb2

import siafu
from siafu.comm.inbox import Inbox
from siafu.comm.transport import Envelope, Kind
from siafu.engine.sites.frames import Incoming, Outgoing, _sum_of
from siafu.engine.sites.rpc import Dialled, Unreachable
from siafu.engine.sites.schema import CHUNK_BYTES, MAX_MESSAGE_BYTES, PROTOCOL, BadMessage, make, pack, unpack
from siafu.graph import Graph
from siafu.sites.site import Site
from siafu.sites.trial import read_authority
from siafu.wire.certificates import (
    issue,
    make_authority,
    make_key,
    read_identity,
    shown,
    write_key,
)
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
        answer = getattr(Site, name)
        monkeypatch.setattr(Site, name, lambda *args, _n=name, _a=answer: (got.append(_n), _a(*args))[1])
    return got


def identity_of(trial: Trial, name: str) -> Certificate:
    return read_identity(trial.folder / name / "site.pem", trial.folder / name / "site.key")


def dial(trial: Trial, identity: Certificate, *, pin: str = "a") -> Dialled:
    pins = (shown((trial.folder / pin / "site.pem").read_bytes(), pin),)
    return Dialled(trial.addresses["a"], "a", pins, identity)


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
    dialled = dial(trial, identity)
    with pytest.raises(Unreachable, match=r"ended the connection|cannot be reached"):
        dialled.ask("Describe", ask(), timeout_s=10)
    dialled.close()
    assert asked == []


def test_a_server_with_another_certificate_than_the_listed_one_is_not_spoken_to(
    trial: Trial, asked: list[str]
) -> None:
    dialled = dial(trial, identity_of(trial, "coordinator"), pin="c")
    with pytest.raises(Unreachable, match="another"):
        dialled.ask("Describe", ask(), timeout_s=10)
    dialled.close()
    assert asked == []


def test_nothing_before_tls_1_3_is_agreed_on(trial: Trial, tmp_path: Path) -> None:
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


def test_each_may_make_its_own_calls_alone(trial: Trial, asked: list[str]) -> None:
    for name, method in (("b", "Describe"), ("b", "Stop")):
        dialled = dial(trial, identity_of(trial, name))
        with pytest.raises(Unreachable, match="may not make this call"):
            dialled.ask(method, ask(), timeout_s=10)
        dialled.close()
    dialled = dial(trial, identity_of(trial, "coordinator"))
    with pytest.raises(Unreachable, match="may not make this call"):
        list(dialled.exchange(iter([b"hello"])))
    dialled.close()
    assert asked == []
    assert any("b that it may not make" in text for text in trial.said["a"])


def test_another_version_is_told_which_one_is_here(trial: Trial) -> None:
    dialled = dial(trial, identity_of(trial, "coordinator"))
    with pytest.raises(Unreachable, match="you run 0; use the same"):
        dialled.ask("Describe", ask(), timeout_s=10)
    dialled.close()


def good_frames() -> list[bytes]:
    frames, values = Outgoing(), torch.arange(600_000, dtype=torch.float32)
    messages = [
        frames.message(Envelope(Kind.COLLECTIVE, 7, number, "halo 1"), values[:5]) for number in range(3)
    ]
    return [
        *(frame for message in messages for frame in message),
        *frames.message(Envelope(Kind.DIRECT, 7, 9, "weights"), values),
    ]


def summed(frame: Any) -> bytes:
    frame.frame_sum = _sum_of(frame)
    return pack(frame)


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
        huge = {"shape": [1 << rng.randrange(31, 60)], "dtype": 7, "kind": 1}
        yield [summed(make("Frame", label="halo 1", **huge))]
        yield [summed(make("Frame", kind=rng.randrange(7, 99)))]
        yield [*good[:4], good[5]]  # a piece is missing


def test_ten_thousand_bad_frames_change_nothing_and_take_no_memory() -> None:
    rng, inbox, process = random.Random(0), Inbox(), psutil.Process(os.getpid())
    made = bad_frames(rng)
    before, refused = process.memory_info().rss, 0
    for _ in range(MANY):
        frames = Incoming(1, inbox := Inbox(), most_bytes=1 << 26)
        try:
            for data in next(made):
                frames.take(data)
        except BadMessage:
            refused += 1
        assert inbox.unasked_bytes(1) <= 4 * CHUNK_BYTES
    assert refused == MANY
    assert process.memory_info().rss - before < 100e6


def test_frames_of_a_listed_site_that_belong_to_no_attempt_are_refused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.sites.site._MEET_S", 0.05)
    rng, dialled = random.Random(1), dial(trial, identity_of(trial, "b"))
    made = bad_frames(rng)
    for _ in range(40):
        with pytest.raises(Unreachable):
            list(dialled.exchange(iter(next(made))))
    hello = pack(make("Hello", protocol=PROTOCOL, version="0.1.0", attempt=b"x" * 16))
    with pytest.raises(Unreachable, match="no such attempt"):
        list(dialled.exchange(iter([hello, *good_frames()])))
    dialled.close()
    site = trial.served["a"][0]
    assert site._attempt is None
    assert site.ledger.totals.all == 0  # and nothing left


def test_bad_frames_within_an_attempt_end_it_alone(trial: Trial) -> None:
    site = trial.served["a"][0]
    coordinator, peer = dial(trial, identity_of(trial, "coordinator")), dial(trial, identity_of(trial, "b"))
    members = [make("Member", name=name, address="127.0.0.1:1") for name in ("a", "b")]
    for number, frames in enumerate(islice(bad_frames(random.Random(2)), 9)):
        name = bytes([number]) * 16
        order = make("Order", attempt=name, run="r", config=CONFIG, members=members)
        coordinator.give("Begin", iter([pack(order)]), timeout_s=60)
        hello = make("Hello", protocol=PROTOCOL, version=siafu.__version__, attempt=name)
        with suppress(Unreachable):
            list(peer.exchange(iter([pack(hello), *frames])))
        assert site._attempt is not None
        assert site._attempt.wait(60)
        assert (site._attempt.state, site._attempt.blames) == ("failed", "b")
    for dialled in (coordinator, peer):
        dialled.close()
    assert set(site.ledger.totals.by_what) <= {"control", "ids"}  # it had greeted, and begun to ask


def test_room_for_secure_aggregation_is_refused_as_long_as_nobody_knows_it() -> None:
    frame = make("Frame", kind=1, label="halo 1")
    for field in (30, 39):
        tagged = bytes([(field << 3) & 127 | 128, field >> 4])  # a number follows
        with pytest.raises(BadMessage, match="fields that this version does not know"):
            unpack("Frame", pack(frame) + tagged + b"\x01")
    described = descriptor_pb2.DescriptorProto()
    frame.DESCRIPTOR.CopyToProto(described)
    assert [(each.start, each.end) for each in described.reserved_range] == [(30, 40)]


def test_a_peer_may_not_fill_the_memory_with_what_nobody_asked_for() -> None:
    inbox, frames = Inbox(), Outgoing()
    incoming = Incoming(1, inbox, most_bytes=10_000)
    values = torch.zeros(1000)
    sent = [frames.message(Envelope(Kind.COLLECTIVE, 1, number, "halo 1"), values)[0] for number in range(3)]
    for data in sent[:2]:
        incoming.take(data)
    with pytest.raises(BadMessage, match="at most 10000"):
        incoming.take(sent[2])
    assert inbox.unasked_bytes(1) == 8000
