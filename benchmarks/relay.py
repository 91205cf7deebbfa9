"""A relay in front of a site of a trial that has everybody's keys, so that a capture of the interface can be opened.

    python benchmarks/relay.py LISTEN SITE FOLDER NAME KEYLOG

Who calls shows its certificate to the relay, which lets in those that the site lists, and calls the site in that one's
name, with its key. All that the site sends to others goes through it, if the site listens on its loopback alone and
calls nobody itself, as the first of a federation. The secrets of its connections go to KEYLOG. No part of siafu: a real
federation has no place that has all keys.
"""

import asyncio
import ssl
import sys
from pathlib import Path

from siafu.wire.certificates import dns_name


def context(folder: Path, name: str, listed: list[str], side: int) -> ssl.SSLContext:
    """TLS 1.3 in the name of a site, trusting the certificates of some others alone."""
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_cert_chain(folder / name / "site.pem", folder / name / "site.key")
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for other in listed:
        made.load_verify_locations(folder / other / "site.pem")
    made.set_alpn_protocols(["h2"])
    return made


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on all that comes, until it ends."""
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except (OSError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def relay(listen: str, site: str, folder: Path, name: str, keylog: str) -> None:
    """Serve until killed."""
    others = [path.parent.name for path in folder.glob("*/site.pem") if path.parent.name != name]
    front = context(folder, name, others, ssl.PROTOCOL_TLS_SERVER)
    front.keylog_filename = keylog

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("peercert")["subjectAltName"][0][1]
        caller = shown.partition(".")[0]
        back = context(folder, caller, [name], ssl.PROTOCOL_TLS_CLIENT)
        host, _, port = site.rpartition(":")
        there = await asyncio.open_connection(host, int(port), ssl=back, server_hostname=dns_name(name))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    host, _, port = listen.rpartition(":")
    server = await asyncio.start_server(passed, host, int(port), ssl=front)
    print("relaying", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:6]))
