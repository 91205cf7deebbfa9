"""One try of a group of sites to train, at one of them: meet the others, make the part, do what every rank does."""

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
from siafu.data_warnings import site_warnings
from siafu.launch.sites.egress import Guard
from siafu.launch.sites.frame_stream import wire_bytes
from siafu.launch.sites.policy import Refused
from siafu.launch.sites.rpc import CallFailed, NotNow, SiteConnection
from siafu.launch.sites.schema import PROTOCOL, make, pack, unpack
from siafu.launch.sites.site_transport import Link, SiteTransport
from siafu.machine import usable_cores
from siafu.partition.cross_site import build_site_part
from siafu.rank import RankJob, train_rank
from siafu.run_folder import RunFolder
from siafu.sites.site_data import Holdings, Keys
from siafu.training.procedure import Callbacks

_MEET_S = 20.0
_LINGER_S = 5.0
_ENDED = ("done", "stopped", "failed")


class Attempt:
    """A try that the coordinator ordered.

    Attributes:
        order: what was ordered.
        state: meeting, training, done, stopped or failed.
        kind, text, blames: of a failure: what kind it was, what may be told of it, and which site is to blame.
        measured: what was measured, JSON, where it ended well.
        ended: set when it did.
    """

    def __init__(
        self,
        order: Any,
        holdings: Holdings,
        keys: Keys,
        guard: Guard,
        *,
        memory: StaleRowCache,
        say: Callable[[str], None],
    ) -> None:
        self.order, self.guard, self._memory = order, guard, memory
        self.state, self.kind, self.text, self.blames, self.measured = "meeting", "", "", "", ""
        self.ended = threading.Event()
        self.followed_at = time.monotonic()
        self._holdings, self._keys, self._say = holdings, keys, say
        names = [member.name for member in order.members]
        own = holdings.config
        self.tree = parse_toml(order.config)
        _check(self.tree)
        self.deadline_s = self.tree.comm.deadline
        self.transport = SiteTransport(
            names.index(own.name),
            names,
            guard,
            most_bytes=own.max_message_bytes,
            limit_s=4 * self.deadline_s + _MEET_S,
        )
        self.folder = own.work / f"attempt-{order.attempt.hex()}"
        self._reason: str | None = None
        self._joined = {peer: threading.Event() for peer in self.transport.links}
        self._taken: set[int] = set()
        self._dialled: list[SiteConnection] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="siafu-site attempt", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, reason: str, *, at_once: bool) -> None:
        """Stop after this epoch, or at once."""
        self._reason = reason
        if at_once and not self.ended.is_set():
            self.transport.lose(_stopped(reason))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        return self.ended.wait(timeout_s)

    # What the other sites call.

    def welcome(self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]) -> Iterator[bytes]:
        """A site with a higher rank calls: its frames come in, ours go out."""
        rank = self._rank_of(peer)
        with self._lock:
            if rank <= self.transport.rank or rank in self._taken or self.ended.is_set():
                raise NotNow("this call was not expected")
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
            raise NotNow("you are no member of this attempt")
        return self.transport.hosts.index(peer)

    def _hello(self, peer: str) -> bytes:
        hello = make("Hello", protocol=PROTOCOL, version=siafu.__version__, attempt=self.order.attempt)
        data = pack(hello)
        self.guard.let_out(peer, "control", "hello", wire_bytes(data))
        return data

    # What this site calls.

    def _meet(self) -> None:
        until = time.monotonic() + _MEET_S
        identity, listed = self._keys.read()
        for rank in range(self.transport.rank):
            member = self.order.members[rank]
            pins = listed.pins.get(member.name)
            if pins is None:
                raise Refused(f"{member.name} is not listed here, so it is not called; list it under peers")
            dialled = SiteConnection(member.address, member.name, pins, identity)
            self._dialled.append(dialled)
            run = threading.Thread(
                target=self._call,
                args=(rank, dialled, until),
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

    def _call(self, rank: int, dialled: SiteConnection, until: float) -> None:
        link = self.transport.links[rank]
        while True:
            welcome = threading.Event()
            call = dialled.exchange(self._outgoing(link, dialled.name, welcome, until))
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

    def _outgoing(self, link: Link, name: str, welcome: threading.Event, until: float) -> Iterator[bytes]:
        yield self._hello(name)
        if welcome.wait(max(0.0, until - time.monotonic())):
            yield from link.outgoing()

    # What it does.

    def _run(self) -> None:
        try:
            self._train()
        except Refused as error:
            self._fail("refused", str(error), own=str(error))
        except CommError as error:
            blames = self.transport.hosts[error.peer] if error.peer >= 0 else ""
            self._fail("stopped" if self._reason else "lost", str(error), blames=blames, own=str(error))
        except Exception as error:
            told = "it failed, and its own log says why"
            self._fail("error", told, own=f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _train(self) -> None:
        self._meet()
        self._say(f"training with {', '.join(self.transport.hosts)}")
        for text in site_warnings(self._holdings.graph):
            self._say(f"warning: {text}")
        self.state = "training"
        torch.get_num_threads()
        torch.set_num_threads(self.tree.threads or usable_cores())
        comm, holdings, order = Comm(self.transport), self._holdings, self.order
        stands_in = self.tree.method == "lazy" and self.tree.lazy.recipe != "frugal"
        part = build_site_part(
            comm,
            holdings.graph,
            holdings.cross,
            names=self.transport.hosts,
            kept=list(order.away) if stands_in else [],
            memory=self._memory,
        )
        self.transport.own_id = part.own.node_id
        edges = int(comm.all_reduce(torch.tensor([part.own.num_edges]), label="task"))
        job = RankJob(
            self.tree,
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

    def _fail(self, kind: str, told: str, *, own: str, blames: str = "") -> None:
        self.kind, self.text, self.blames = kind, told, blames
        self._say(f"{'stopped' if kind == 'stopped' else 'failed'}: {own}")
        self.state = "stopped" if kind == "stopped" else "failed"
        with suppress(Exception):
            self.transport.fail(own)

    def _end(self) -> None:
        with suppress(Exception):
            self.transport.close()
        for dialled in self._dialled:
            dialled.close()
        self.ended.set()

    def forget(self) -> None:
        """Remove what it wrote."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _check(tree: Config) -> None:
    """Refuse settings with which a site would do other things than train with sites."""
    if (
        tree.engine != "sites"
        or tree.method not in ("lazy", "full", "sampled")
        or tree.lazy.clients != "none"
    ):
        raise ValueError(
            f"method {tree.method} by engine {tree.engine}; expected lazy, full or sampled by sites"
        )
    if tree.task != "node":
        raise ValueError(f"task is {tree.task}; expected node, which is what sites learn together")


def _stopped(reason: str) -> ErrorFactory:
    return lambda phase: CommError(
        f'the coordinator ended it in "{phase}": {reason}', peer=-1, host="", phase=phase
    )


def _absent(name: str, rank: int) -> CommError:
    return CommError(f"{name} did not come to meet the others", peer=rank, host=name, phase="meeting")
