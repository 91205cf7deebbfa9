"""Two hosts on this machine: network namespaces joined by a rate-limited pair of interfaces. Needs root.

A process of a host has the host's network, its own /dev/shm, and, on the second host, an empty folder in the place of
the first one's work. What is sent goes from one namespace to the other and nowhere else. When the context ends, all
processes of both hosts are gone, and with them their mounts; then the namespaces go, and the interfaces with them.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_NETWORK = "10.77.{0}.{1}"  # exists inside the two namespaces alone
_PRIVATE = """\
set -e
mount -t tmpfs -o size=1g tmpfs /dev/shm
if [ -n "$HIDDEN" ]; then mount -t tmpfs -o size=2g tmpfs "$HIDDEN"; fi
hostname "$HOST"
exec "$@"
"""


@dataclass(frozen=True)
class Host:
    """One of the hosts.

    Attributes:
        name: its host name.
        namespace: of its network.
        interface: by which it reaches the other.
        address: of that interface.
        hidden: a folder that is its own, empty at first; None where it sees the machine's.
    """

    name: str
    namespace: str
    interface: str
    address: str
    hidden: Path | None
    _started: list["subprocess.Popen[str]"] = field(default_factory=list, repr=False)

    def start(self, command: Sequence[str], *, environ: dict[str, str]) -> "subprocess.Popen[str]":
        """Start a command on this host, in a process namespace that ends with it."""
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        environ = environ | {"HOST": self.name, "HIDDEN": str(self.hidden or "")}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *apart, "sh", "-c", _PRIVATE, "sh", *command],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environ},
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End whatever still runs here."""
        for process in self._started:
            process.kill()
            process.communicate()

    def sent_bytes(self) -> int:
        """What the interface has sent since it was made, headers and acknowledgements included."""
        shown = _ip("-n", self.namespace, "-j", "-s", "link", "show", "dev", self.interface)
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def refusal() -> str | None:
    """Why there can be no such hosts here, or None."""
    if os.geteuid():
        return "needs root"
    missing = [tool for tool in ("ip", "tc", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    probe = f"siafu-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    _ip("netns", "delete", probe)
    return None


@contextmanager
def two_hosts(
    hidden: Path, *, rate: str = "400mbit", whole_packets: bool = True
) -> Iterator[tuple[Host, Host]]:
    """Two hosts, of which the second has a private folder in the place of ``hidden``.

    With ``whole_packets`` no interface takes more than one packet at a time from TCP, so that its counters count the
    headers of every packet, as those of a wire do.
    """
    tag, subnet = secrets.token_hex(3), secrets.randbelow(200)
    hosts = tuple(
        Host(
            name=f"host{place}",
            namespace=f"siafu-{tag}-{place}",
            interface=f"sf{tag}{place}",
            address=_NETWORK.format(subnet, place + 1),
            hidden=hidden if place else None,
        )
        for place in range(2)
    )
    try:
        _join(hosts, rate=rate, whole_packets=whole_packets)
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.end()
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)


@contextmanager
def hosts_on_a_switch(
    count: int, *, rate: str = "100mbit", whole_packets: bool = True
) -> Iterator[tuple[Host, ...]]:
    """Hosts that reach each other over a switch, each by an interface of this rate; they see the machine's folders."""
    tag, subnet = secrets.token_hex(3), secrets.randbelow(200)
    switch = f"siafu-{tag}-switch"
    hosts = tuple(
        Host(
            name=f"host{place}",
            namespace=f"siafu-{tag}-{place}",
            interface=f"sf{tag}{place}",
            address=_NETWORK.format(subnet, place + 1),
            hidden=None,
        )
        for place in range(count)
    )
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host in hosts:
            _plug(host, switch, rate=rate, whole_packets=whole_packets)
        yield hosts
    finally:
        for host in hosts:
            host.end()
        for namespace in (*(host.namespace for host in hosts), switch):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _plug(host: Host, switch: str, *, rate: str, whole_packets: bool) -> None:
    _ip("netns", "add", host.namespace)
    port = f"p{host.interface[2:]}"
    ends = (host.interface, "netns", host.namespace), (port, "netns", switch)
    _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
    _ip("-n", switch, "link", "set", port, "master", "switch", "up")
    _limit(host, rate=rate, whole_packets=whole_packets)


def _join(hosts: Sequence[Host], *, rate: str, whole_packets: bool) -> None:
    for host in hosts:
        _ip("netns", "add", host.namespace)
    ends = [[host.interface, "netns", host.namespace] for host in hosts]
    _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
    for host in hosts:
        _limit(host, rate=rate, whole_packets=whole_packets)


def _limit(host: Host, *, rate: str, whole_packets: bool) -> None:
    """Give a host's interface its address and its rate."""
    inside = ("-n", host.namespace)
    if whole_packets:
        _ip(*inside, "link", "set", "dev", host.interface, "gso_max_segs", "1")
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", host.interface)
    for interface in ("lo", host.interface):
        _ip(*inside, "link", "set", interface, "up")
    limit = ["root", "tbf", "rate", rate, "burst", "1mb", "latency", "100ms"]
    _call(["tc", *inside, "qdisc", "add", "dev", host.interface, *limit])


def _ip(*arguments: str) -> str:
    return _call(["ip", *arguments])


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
