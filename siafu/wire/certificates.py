"""Keys and X.509 certificates: create, request, sign, read, and check their validity.

Ranks and graph servers make a self-signed certificate for each run (:func:`self_signed`). A site is identified by its
certificate itself (pinning), whoever signed it; a certificate authority is only a convenience for a trial. Keys are on
the curve P-256, since the sites' server allows no cipher with which TLS before 1.3 could use such a key.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from siafu.wire.tls import Certificate

DAYS = 365
WARN_DAYS = 30
_SUFFIX = ".sites.siafu"  # of the name in a certificate


@dataclass(frozen=True)
class SiteCertificate:
    """The fields of a site's certificate.

    Attributes:
        name: the name of the site.
        fingerprint: SHA-256 of the certificate, in hexadecimal digits.
        begins, ends: the period in which it is valid.
        pem: the certificate, PEM.
    """

    name: str
    fingerprint: str
    begins: datetime
    ends: datetime
    pem: bytes

    def validity_error(self, now: datetime) -> str | None:
        """Return why the certificate is not valid at a time, or None."""
        if now > self.ends:
            return (
                f"the certificate of {self.name} expired on {self.ends:%Y-%m-%d %H:%M} UTC; make a new one with "
                '"siafu site rotate", and have the others list it'
            )
        if now < self.begins:
            return (
                f"the certificate of {self.name} is valid from {self.begins:%Y-%m-%d %H:%M} UTC on, but the clock "
                f"here says {now:%Y-%m-%d %H:%M} UTC; set the clock right"
            )
        return None

    def expiry_warning(self, now: datetime) -> str | None:
        """Return a warning if the certificate expires within 30 days, or None."""
        left = self.ends - now
        if left > timedelta(days=WARN_DAYS):
            return None
        return (
            f"the certificate of {self.name} expires in {max(0, left.days)} days, on {self.ends:%Y-%m-%d}; make a "
            'new one with "siafu site rotate"'
        )


def dns_name(site: str) -> str:
    """Return the DNS name of a site in its certificate."""
    return site + _SUFFIX


def read_certificate(path: Path) -> SiteCertificate:
    """Read a site's certificate from a PEM file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected a certificate, PEM") from None
    return parse_certificate(data, str(path))


def parse_certificate(pem: bytes, what: str) -> SiteCertificate:
    """Parse a site's certificate, PEM; ``what`` names it in errors."""
    try:
        read = x509.load_pem_x509_certificate(pem)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (name,) = names.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        raise ValueError(f'{what}: not a certificate of a site; make one with "siafu site init"') from None

    if not name.endswith(_SUFFIX) or not isinstance(read.public_key(), ec.EllipticCurvePublicKey):
        raise ValueError(
            f"{what}: names {name!r}; expected a name that ends in {_SUFFIX} and a key on an elliptic curve, as "
            '"siafu site init" makes them'
        )

    if _can_sign(read):
        raise ValueError(
            f"{what}: may sign certificates of others, which the handshake would then let in; expected one with "
            '"CA:FALSE", as "siafu site init" makes them'
        )

    der = read.public_bytes(Encoding.DER)
    return SiteCertificate(
        name.removesuffix(_SUFFIX),
        hashlib.sha256(der).hexdigest(),
        read.not_valid_before_utc,
        read.not_valid_after_utc,
        read.public_bytes(Encoding.PEM),
    )


def _can_sign(certificate: Any) -> bool:
    """Return whether TLS would accept certificates signed by this one if it is pinned."""
    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return True
    except x509.ExtensionNotFound:
        pass
    try:
        return bool(extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign)
    except x509.ExtensionNotFound:
        return False


def read_identity(certificate: Path, key: Path) -> Certificate:
    """Read a certificate and its private key, which must match and be readable only by their owner."""
    seen = read_certificate(certificate)
    try:
        secret, mode = key.read_bytes(), key.stat().st_mode
    except OSError as error:
        raise ValueError(f"{key}: {error.strerror}; expected the key of {certificate}") from None
    if mode & 0o077:
        raise ValueError(f"{key}: others may read this key; take that from them with: chmod 600 {key}")

    try:
        own = serialization.load_pem_private_key(secret, None).public_key()
    except (ValueError, TypeError):
        raise ValueError(f"{key}: not a private key, PEM without a password") from None
    if own != x509.load_pem_x509_certificate(seen.pem).public_key():
        raise ValueError(f"{key}: not the key of {certificate}; give the one that was made with it")
    return Certificate(seen.pem, secret)


def make_key() -> Any:
    """Make a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def self_signed(name: str = "siafu", *, days: float = 30) -> Certificate:
    """Make a self-signed certificate with its key, for one run."""
    key = make_key()
    return Certificate(issue(name, key.public_key(), None, key, days=days), _private_pem(key))


def write_key(key: Any, path: Path) -> None:
    """Write a private key to a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_private_pem(key))


def request(name: str, key: Any) -> bytes:
    """Make a certificate signing request of a site, PEM, for an authority of the user."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    made = builder.add_extension(_names(name), critical=False).sign(key, hashes.SHA256())
    return made.public_bytes(Encoding.PEM)


@dataclass(frozen=True, repr=False)
class Authority:
    """A certificate authority, which signs the certificates of a trial: its key and certificate."""

    key: Any
    certificate: Any

    @property
    def pem(self) -> bytes:
        """The certificate, PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self.certificate.public_bytes(Encoding.PEM)


def make_authority(*, days: float = DAYS) -> Authority:
    """Make a self-signed authority."""
    key = make_key()
    return Authority(key, _sign("authority", key.public_key(), None, key, days, authority=True))


def read_authority(folder: Path) -> Authority:
    """Read the authority that :func:`write_authority` wrote."""
    try:
        key = serialization.load_pem_private_key((folder / "authority.key").read_bytes(), None)
        return Authority(key, x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes()))
    except OSError as error:
        raise ValueError(
            f"{error.filename}: {error.strerror}; expected the folder of an authority, as "
            '"siafu site init --trial" makes one'
        ) from None


def write_authority(authority: Authority, folder: Path) -> None:
    """Write an authority to a folder."""
    write_key(authority.key, folder / "authority.key")
    (folder / "authority.pem").write_bytes(authority.pem)


def issue(name: str, public_key: Any, authority: Authority | None, key: Any, *, days: float = DAYS) -> bytes:
    """Issue a site's certificate, PEM, signed by an authority, or self-signed with ``key`` without one."""
    signer = authority.key if authority else key
    issuer = authority.certificate.subject if authority else None
    made = _sign(name, public_key, issuer, signer, days, authority=False)
    return made.public_bytes(Encoding.PEM)


def sign_request(data: bytes, authority: Authority, *, days: float = DAYS) -> tuple[str, bytes]:
    """Sign a request; returns the site's name in it and the certificate, PEM."""
    try:
        asked = x509.load_pem_x509_csr(data)
        names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (name,) = names.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        raise ValueError('not a certificate request of a site; make one with "siafu site init"') from None
    if not asked.is_signature_valid or not name.endswith(_SUFFIX):
        raise ValueError(f'the request names {name!r}, or is damaged; expected one of "siafu site init"')
    site = name.removesuffix(_SUFFIX)
    return site, issue(site, asked.public_key(), authority, None, days=days)


def _sign(name: str, public_key: Any, issuer: Any, signer: Any, days: float, *, authority: bool) -> Any:

    now, subject = datetime.now(UTC), _subject(name)
    builder = x509.CertificateBuilder(issuer or subject, subject, public_key, x509.random_serial_number())
    builder = builder.not_valid_before(now + min(timedelta(days=days), timedelta()) - timedelta(hours=1))
    builder = builder.not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
    builder = builder.add_extension(_usage(authority), critical=True)
    return builder.add_extension(_names(name), critical=False).sign(signer, hashes.SHA256())


def _subject(name: str) -> Any:
    """Make a unique subject: TLS looks up issuers by subject, and a site may have two certificates for a while."""
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, f"{name} {secrets.token_hex(4)}")])


def _usage(authority: bool) -> Any:
    """Return the key usage: an authority may only sign certificates, a site only handshakes."""
    others = "content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only decipher_only"
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, **dict.fromkeys(others.split(), False)
    )


def _names(name: str) -> Any:
    return x509.SubjectAlternativeName([x509.DNSName(dns_name(name))])


def _private_pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())
