"""A certificate for one run, signed by itself: workers know it by its fingerprint, which stands in their lease."""

import hashlib
import socket
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_DAYS = 30


@dataclass(frozen=True, repr=False)
class Certificate:
    """A certificate and its key, as PEM text."""

    certificate: str
    key: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hexadecimal digits."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate)).hexdigest()

    def server_context(self) -> ssl.SSLContext:
        """TLS of who owns the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory(prefix="siafu-") as folder:  # for its owner's eyes alone
            both = Path(folder, "both.pem")
            both.write_text(self.key + self.certificate)
            context.load_cert_chain(both)
        return context


class WrongCertificate(ValueError):
    """A server showed another certificate than the lease names."""


def dial_tls(sock: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    """TLS to the server that has the certificate of this fingerprint, and to no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it is known by its fingerprint, whatever its name
    context.verify_mode = ssl.CERT_NONE
    secure = context.wrap_socket(sock)
    shown = secure.getpeercert(binary_form=True) or b""
    if hashlib.sha256(shown).hexdigest() != fingerprint:
        secure.close()
        raise WrongCertificate(
            "the server shows another certificate than this lease names: somebody stands between, or the lease is old"
        )
    return secure


def make_certificate() -> Certificate:
    """A new certificate, by the package ``cryptography`` or the command ``openssl``."""
    try:
        return _by_cryptography()
    except ImportError:
        return _by_openssl()


def _by_cryptography() -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "siafu")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Certificate(made.public_bytes(pem).decode(), secret.decode())


def _by_openssl() -> Certificate:
    with tempfile.TemporaryDirectory(prefix="siafu-") as folder:
        key, made = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                   "-days", str(_DAYS), "-subj", "/CN=siafu", "-keyout", str(key), "-out", str(made)]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise ValueError(
                "workers on other hosts are reached by TLS, which needs a certificate: pip install cryptography, "
                f"or install the openssl command ({error})"
            ) from error
        return Certificate(made.read_text(), key.read_text())
