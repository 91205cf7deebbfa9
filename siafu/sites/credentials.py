"""The key of a site and the certificates that it trusts, read again when their files change."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siafu.launch.sites.config import COORDINATOR, SiteConfig
from siafu.launch.sites.rpc import TrustedPeers
from siafu.wire.certificates import SiteCertificate, read_certificate, read_identity
from siafu.wire.tls import Certificate


class SiteCredentials:
    """The own key of a site and its trusted peers; read again when one of their files changes."""

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        self._seen: tuple[Any, ...] = ()
        self.read()

    def read(self) -> tuple[Certificate, TrustedPeers]:
        """Return key and trusted peers as the files have them; if the files are invalid, the last valid ones."""
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._now = self._load()
            except ValueError:
                if not self._seen:
                    raise
            self._seen = stamp
        return self._now

    @property
    def own(self) -> SiteCertificate:
        """The site's own certificate."""
        return read_certificate(self._config.certificate)

    def troubles(self) -> list[str]:
        """Return a text for each certificate that is invalid or expires soon."""
        now, (_, listed) = datetime.now(UTC), self.read()
        every = [self.own, *(pin for pins in listed.pins.values() for pin in pins)]
        found = [each.validity_error(now) or each.expiry_warning(now) for each in every]
        return [text for text in found if text]

    def _load(self) -> tuple[Certificate, TrustedPeers]:
        config = self._config
        own = self.own
        if own.name != config.name:
            raise ValueError(
                f"{config.certificate}: is of {own.name}, but this site is called {config.name}; give its own"
            )
        identity = read_identity(config.certificate, config.key)
        pins = {name: _pins(name, peer.certificate) for name, peer in config.peers.items()}
        pins[COORDINATOR] = _pins(COORDINATOR, config.coordinator)
        listed = TrustedPeers(pins)
        if listed.name_of(own.fingerprint) is not None:
            raise ValueError(
                f"{config.certificate}: also listed as another's; each has a certificate of its own"
            )
        return identity, listed

    def _stamp(self) -> tuple[Any, ...]:
        config = self._config
        listed = [path for peer in config.peers.values() for path in peer.certificate]
        files = [config.certificate, config.key, *config.coordinator, *listed]
        return tuple(
            (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None for path in files
        )


def _pins(name: str, paths: tuple[Path, ...]) -> tuple[SiteCertificate, ...]:
    pins = tuple(read_certificate(path) for path in paths)
    for path, pin in zip(paths, pins, strict=True):
        if pin.name != name:
            raise ValueError(
                f"{path}: is the certificate of {pin.name}, but is listed for {name}; put the right one"
            )
    return pins
