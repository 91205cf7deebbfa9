"""One attempt to train, at one site: connect to the other sites, build the graph part, train as a rank of the group."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

import siafu
from siafu.checksums import checksum
from siafu.comm import Comm, CommError
from siafu.comm.errors import ErrorFactory
from siafu.comm.stale_rows import StaleRowCache
from siafu.config import Config, parse_toml
from siafu.cores import usable_cores
from siafu.data_warnings import site_warnings
from siafu.launch.sites.egress import EgressGuard
from siafu.launch.sites.frame_stream import wire_bytes
from siafu.launch.sites.policy import EgressRefused
from siafu.launch.sites.rpc import CallFailed, CallRejected, SiteConnection
from siafu.launch.sites.schema import PROTOCOL, make, pack, unpack
from siafu.launch.sites.site_transport import PeerLink, SiteTransport
from siafu.partition.cross_site import build_site_part
from siafu.rank import RankJob, train_rank
from siafu.run_folder import RunFolder
from siafu.sites.credentials import SiteCredentials
from siafu.sites.site_data import SiteData
from siafu.training.procedure import Callbacks

_CONNECT_S = 20.0
_LINGER_S = 5.0


class SiteAttempt:
    """An attempt to train that the coordinator ordered.

    Attributes:
        order: the coordinator's order.
        state: meeting, training, done, stopped or failed.
        kind, text, blames: of a failure: its kind, the text that others may read, and the site that caused it.
        measured: the metrics of an attempt that ended well, as JSON.
        ended: set when the attempt has ended.
    """

    def __init__(
        self,
        order: Any,
        site_data: SiteData,
        keys: SiteCredentials,
        guard: EgressGuard,
        *,
        memory: StaleRowCache,
        say: Callable[[str], None],
    ) -> None:
        self.order, self.guard, self._memory = order, guard, memory
        self.state, self.kind, self.text, self.blames, self.measured = "meeting", "", "", "", ""
        self.ended = threading.Event()
        self._holdings, self._keys, self._say = site_data, keys, say
        names = [member.name for member in order.members]
        own = site_data.config
        self.config = parse_toml(order.config)
        _check(self.config)
        self.deadline_s = self.config.comm.deadline
        self.transport = SiteTransport(
            names.index(own.name),
            names,
            guard,
            most_bytes=own.max_message_bytes,
            limit_s=4 * self.deadline_s + _CONNECT_S,
        )
        self.folder = own.work / f"attempt-{order.attempt.hex()}"
        self._reason: str | None = None
        self._joined = {peer: threading.Event() for peer in self.transport.links}
        self._taken: set[int] = set()
        self._connections: list[SiteConnection] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="siafu-site attempt", daemon=True)

    def start(self) -> None:
        """Start the attempt in a thread."""
        self._thread.start()

    def stop(self, reason: str, *, at_once: bool) -> None:
        """Stop after the current epoch, or at once."""
        self._reason = reason
        if at_once and not self.ended.is_set():
            self.transport.end_group(_stopped(reason))

    def wait(self, timeout_s: float) -> bool:
        """Wait until the attempt has ended; return whether it has."""
        return self.ended.wait(timeout_s)

    # Connections from sites of a higher rank.

    def accept_peer(
        self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]
    ) -> Iterator[bytes]:
        """Serve the call of a site of a higher rank: read its frames, yield those to it."""
        rank = self._rank_of(peer)
        with self._lock:
            if rank <= self.transport.rank or rank in self._taken or self.ended.is_set():
                raise CallRejected("this call was not expected")
            self._taken.add(rank)
        link = self.transport.links[rank]
        link.cut = cancel
        yield self._hello(peer)
        threading.Thread(
            target=link.read, args=(incoming,), name=f"siafu-site from {peer}", daemon=True
        ).start()
        self._joined[rank].set()
        yield from link.outgoing()
        link.over.wait(_LINGER_S)

    def _rank_of(self, peer: str) -> int:
        if peer not in self.transport.hosts:
            raise CallRejected("you are no member of this attempt")
        return self.transport.hosts.index(peer)

    def _hello(self, peer: str) -> bytes:
        hello = make("Hello", protocol=PROTOCOL, version=siafu.__version__, attempt=self.order.attempt)
        data = pack(hello)
        self.guard.authorize(peer, "control", "hello", wire_bytes(data))
        return data

    # Connections to sites of a lower rank.

    def _connect_peers(self) -> None:
        until = time.monotonic() + _CONNECT_S
        identity, listed = self._keys.read()
        for rank in range(self.transport.rank):
            member = self.order.members[rank]
            pins = listed.pins.get(member.name)
            if pins is None:
                raise EgressRefused(
                    f"{member.name} is not listed here, so it is not called; list it under peers"
                )
            connection = SiteConnection(member.address, member.name, pins, identity)
            self._connections.append(connection)
            run = threading.Thread(
                target=self._call_peer,
                args=(rank, connection, until),
                name=f"siafu-site to {member.name}",
                daemon=True,
            )
            run.start()
        for rank, joined in self._joined.items():
            while not joined.wait(0.1):
                if self.transport.loss is not None:
                    raise self.transport.loss("meeting")
                if time.monotonic() > until:
                    raise _absent(self.transport.hosts[rank], rank)

    def _call_peer(self, rank: int, connection: SiteConnection, until: float) -> None:
        link = self.transport.links[rank]
        while True:
            welcome = threading.Event()
            call = connection.exchange(self._outgoing(link, connection.name, welcome, until))
            incoming = iter(call)
            try:
                hello = unpack("Hello", next(incoming))
                if hello.attempt != self.order.attempt:
                    raise ValueError
                break
            except (CallFailed, StopIteration, ValueError):
                call.cancel()
                if time.monotonic() + 0.2 > until or self.ended.wait(0.2):
                    return
        link.cut = call.cancel
        welcome.set()
        self._joined[rank].set()
        link.read(incoming)

    def _outgoing(self, link: PeerLink, name: str, welcome: threading.Event, until: float) -> Iterator[bytes]:
        yield self._hello(name)
        if welcome.wait(max(0.0, until - time.monotonic())):
            yield from link.outgoing()

    # Training.

    def _run(self) -> None:
        try:
            self._train()
        except EgressRefused as error:
            self._record_failure("refused", str(error), own=str(error))
        except CommError as error:
            blames = self.transport.hosts[error.peer] if error.peer >= 0 else ""
            self._record_failure(
                "stopped" if self._reason else "lost", str(error), blames=blames, own=str(error)
            )
        except Exception as error:
            public = "it failed, and its own log says why"
            self._record_failure("error", public, own=f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _train(self) -> None:
        self._connect_peers()
        self._say(f"training with {', '.join(self.transport.hosts)}")
        for text in site_warnings(self._holdings.graph):
            self._say(f"warning: {text}")
        self.state = "training"
        torch.get_num_threads()
        torch.set_num_threads(self.config.threads or usable_cores())
        comm, site_data, order = Comm(self.transport), self._holdings, self.order
        stands_in = self.config.method == "lazy" and self.config.lazy.recipe != "frugal"
        part = build_site_part(
            comm,
            site_data.graph,
            site_data.cross,
            names=self.transport.hosts,
            kept=list(order.away) if stands_in else [],
            memory=self._memory,
        )
        self.transport.own_id = part.own.node_id
        edges = int(comm.all_reduce(torch.tensor([part.own.num_edges]), label="task"))
        job = RankJob(
            self.config,
            checksum(order.config),
            edges,
            resumed=order.resumed,
            checkpointed=order.checkpointed,
            folder=self.folder,
            same_ranks=order.same_group,
        )
        first = comm.rank == 0
        found, _ = train_rank(
            comm,
            part,
            job,
            folder=RunFolder(self.folder) if first else None,
            callbacks=Callbacks(should_stop=lambda: self._reason),
        )
        self.transport.close()
        self.measured = json.dumps(found)
        self.state = "done" if found["finished"] else "stopped"

    def _record_failure(self, kind: str, public: str, *, own: str, blames: str = "") -> None:
        self.kind, self.text, self.blames = kind, public, blames
        self._say(f"{'stopped' if kind == 'stopped' else 'failed'}: {own}")
        self.state = "stopped" if kind == "stopped" else "failed"
        with suppress(Exception):
            self.transport.fail(own)

    def _end(self) -> None:
        with suppress(Exception):
            self.transport.close()
        for connection in self._connections:
            connection.close()
        self.ended.set()

    def remove_files(self) -> None:
        """Remove the folder of the attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _check(config: Config) -> None:
    """Refuse settings that would make a site do anything but train with other sites."""
    if (
        config.engine != "sites"
        or config.method not in ("lazy", "full", "sampled")
        or config.lazy.clients != "none"
    ):
        raise ValueError(
            f"method {config.method} by engine {config.engine}; expected lazy, full or sampled by sites"
        )
    if config.task != "node":
        raise ValueError(f"task is {config.task}; expected node, which is what sites learn together")


def _stopped(reason: str) -> ErrorFactory:
    return lambda phase: CommError(
        f'the coordinator ended it in "{phase}": {reason}', peer=-1, host="", phase=phase
    )


def _absent(name: str, rank: int) -> CommError:
    return CommError(f"{name} did not come to meet the others", peer=rank, host=name, phase="meeting")
