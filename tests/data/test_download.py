"""Downloads and archives are complete, or refused with the reason."""

import io
import socket
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from siafu.data.download import fetch, sha256, unpack


def tar(*members: tuple[str, bytes], links: tuple[tuple[str, str], ...] = ()) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return made.getvalue()


def zipped(*members: tuple[str, bytes], link: str | None = None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
        if link is not None:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, "/etc/passwd")
    return made.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_file_is_downloaded_whole_and_progress_is_told(server, tmp_path: Path) -> None:
    server.files["big.bin"] = bytes(range(256)) * 10_000
    told: list[tuple[str, int, int | None]] = []
    fetch(
        f"{server.url}/big.bin",
        tmp_path / "big.bin",
        limit_bytes=10**7,
        progress=lambda label, done, total: told.append((label, done, total)),
    )
    assert (tmp_path / "big.bin").read_bytes() == server.files["big.bin"]
    assert told[-1] == ("download big.bin", 2_560_000, 2_560_000)
    assert sha256(tmp_path / "big.bin").startswith("2350b445eb01")


def test_a_file_that_is_not_there_is_said_with_its_address(server, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=rf"{server.url}/no.bin: the server answered 404"):
        fetch(f"{server.url}/no.bin", tmp_path / "no.bin", limit_bytes=100)


def test_a_server_that_does_not_answer_is_said_with_its_address(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.bin"
        with pytest.raises(ConnectionError, match=rf"{url}: .*refused"):
            fetch(url, tmp_path / "a.bin", limit_bytes=100)


def test_a_file_that_ends_early_is_refused(server, tmp_path: Path) -> None:
    server.files["a.bin"] = b"12345"
    server.lie = 5
    with pytest.raises(ConnectionError, match="ended after 5 of 10 bytes"):
        fetch(f"{server.url}/a.bin", tmp_path / "a.bin", limit_bytes=100)


def test_a_file_that_is_too_large_is_refused(server, tmp_path: Path) -> None:
    server.files["a.bin"] = bytes(101)
    with pytest.raises(ValueError, match="has 101 bytes; expected at most 100"):
        fetch(f"{server.url}/a.bin", tmp_path / "a.bin", limit_bytes=100)
    server.lie = None  # it says nothing of the length
    with pytest.raises(ValueError, match="has more than 50 bytes"):
        fetch(f"{server.url}/a.bin", tmp_path / "a.bin", limit_bytes=50)


def test_only_the_web_is_asked(tmp_path: Path) -> None:
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "/etc/passwd"):
        with pytest.raises(ValueError, match="expected an address that begins with http"):
            fetch(url, tmp_path / "x", limit_bytes=100)


@pytest.mark.parametrize("pack", [tar, zipped])
def test_an_archive_is_unpacked_with_its_folders(tmp_path: Path, pack) -> None:
    (tmp_path / "a").write_bytes(pack(("cora/cora.cites", b"1\t2\n"), ("cora/README", b"hello")))
    unpack(tmp_path / "a", tmp_path / "out", limit_bytes=100)
    assert files_in(tmp_path / "out") == {"cora/cora.cites": b"1\t2\n", "cora/README": b"hello"}


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:/evil"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, pack, name: str) -> None:
    (tmp_path / "a").write_bytes(pack((name, b"evil")))
    with pytest.raises(ValueError, match="leads out of its folder"):
        unpack(tmp_path / "a", tmp_path / "out", limit_bytes=100)
    assert not [path for path in tmp_path.rglob("*evil*")]


@pytest.mark.parametrize(
    "content", [tar(links=(("x", "/etc/passwd"),)), zipped(link="x")], ids=["tar", "zip"]
)
def test_a_link_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="x is neither a file nor a folder"):
        unpack(tmp_path / "a", tmp_path / "out", limit_bytes=100)


@pytest.mark.parametrize("pack", [tar, zipped])
def test_an_archive_that_grows_too_large_is_refused(tmp_path: Path, pack) -> None:
    (tmp_path / "a").write_bytes(pack(("one", bytes(60)), ("two", bytes(60))))
    with pytest.raises(ValueError, match="two makes it larger than it should be"):
        unpack(tmp_path / "a", tmp_path / "out", limit_bytes=100)
    assert "two" not in files_in(tmp_path / "out")


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_damaged_archive_is_refused_or_the_same(tmp_path: Path, pack) -> None:
    whole = pack(("one", bytes(range(200)) * 3))
    for cut in range(0, len(whole), 7):
        (tmp_path / "a").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpack(tmp_path / "a", tmp_path / "out", limit_bytes=10_000)
    for place in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 0x55
        (tmp_path / "a").write_bytes(flipped)
        try:
            unpack(tmp_path / "a", tmp_path / f"flip{place}", limit_bytes=10_000)
        except ValueError:
            continue
        assert bytes(range(200)) * 3 in files_in(tmp_path / f"flip{place}").values()
