"""Files in a folder with planted links: links are not followed, and leftovers are removed."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from siafu import files
from siafu.files import atomic_writer, lock_file, make_folder, open_append, read_private, write_atomically

LEFTOVER = ".t.0123456789abcdef.tmp"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's that must stay as it is."""
    path = tmp_path / "secret"
    path.write_text("mine")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that others can write."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


def lock(path: Path) -> None:
    with lock_file(path, refusal="taken"):
        pass


def append(path: Path) -> None:
    with open_append(path) as file:
        file.write(b"more")


@pytest.mark.parametrize("open_it", [lock, append])
def test_a_planted_link_is_refused_and_its_target_stays(
    secret: Path, shared: Path, open_it: Callable[[Path], None]
) -> None:
    (shared / "t").symlink_to(secret)
    with pytest.raises(ValueError, match="t: is a symbolic link; expected a regular file or none; delete it"):
        open_it(shared / "t")
    assert secret.read_text() == "mine"


@pytest.mark.parametrize("open_it", [lock, append])
def test_a_dangling_link_creates_nothing(shared: Path, open_it: Callable[[Path], None]) -> None:
    (shared / "t").symlink_to(shared / "new")
    with pytest.raises(ValueError, match="symbolic link"):
        open_it(shared / "t")
    assert not (shared / "new").exists()


@pytest.mark.parametrize("open_it", [lock, append])
def test_a_planted_fifo_is_refused_and_nothing_waits(shared: Path, open_it: Callable[[Path], None]) -> None:
    os.mkfifo(shared / "t")
    with pytest.raises(ValueError, match="t: is no regular file"):
        open_it(shared / "t")


def test_a_lock_is_not_emptied_and_only_its_owner_can_open_a_new_one(shared: Path) -> None:
    (shared / "old").write_text("kept")
    lock(shared / "old")
    lock(shared / "new")
    assert (shared / "old").read_text() == "kept"
    assert stat.S_IMODE((shared / "new").stat().st_mode) == 0o600


def test_a_lock_that_is_held_is_refused_and_can_be_had_afterwards(shared: Path) -> None:
    with lock_file(shared / "t", refusal="taken"), pytest.raises(ValueError, match="taken"):
        lock(shared / "t")
    lock(shared / "t")


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_stays(secret: Path, shared: Path) -> None:
    (shared / "t").symlink_to(secret)
    write_atomically(shared / "t", b"new")
    assert (secret.read_text(), (shared / "t").read_text()) == ("mine", "new")
    assert not (shared / "t").is_symlink()


def test_a_link_under_a_temporary_name_that_was_guessed_is_not_followed(
    secret: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "0123456789abcdef")
    (shared / LEFTOVER).symlink_to(secret)
    with pytest.raises(FileExistsError):
        write_atomically(shared / "t", b"new")
    assert secret.read_text() == "mine"


@pytest.mark.parametrize("planted", [".t.tmp", ".lock"])
def test_temporary_names_are_not_those_that_somebody_can_plant(
    secret: Path, shared: Path, planted: str
) -> None:
    (shared / planted).symlink_to(secret)
    write_atomically(shared / "t", b"new")
    assert (secret.read_text(), (shared / "t").read_text()) == ("mine", "new")


def test_a_leftover_of_a_killed_writer_is_deleted_and_that_of_a_living_one_is_not(shared: Path) -> None:
    (shared / LEFTOVER).write_text("half")
    (shared / ".other.0123456789abcdef.tmp").write_text("of another file")
    living = shared / ".t.fedcba9876543210.tmp"
    with living.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(shared / "t", b"whole")
        assert {path.name for path in shared.iterdir()} == {"t", living.name, ".other.0123456789abcdef.tmp"}


def test_two_writers_of_one_file_both_end_and_the_last_stays(shared: Path) -> None:
    with atomic_writer(shared / "t") as first:
        first.write(b"first")
        write_atomically(shared / "t", b"second")
    assert [path.name for path in shared.iterdir()] == ["t"]
    assert (shared / "t").read_text() == "first"


def test_a_write_that_fails_names_the_file_and_not_the_temporary_one(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/t'"):
        write_atomically(shared / "t", b"new")
    assert not list(shared.iterdir())


def test_a_link_in_the_place_of_a_folder_is_refused(shared: Path, tmp_path: Path) -> None:
    (shared / "checkpoint").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="checkpoint: is a symbolic link; expected a folder or none"):
        make_folder(shared / "checkpoint")
    make_folder(shared / "real")
    make_folder(shared / "real")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
def test_a_private_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(mode)
    with pytest.raises(
        ValueError, match=rf"key: belongs to user \d+ with mode {mode:04o}; expected .* chmod 600"
    ):
        read_private(path, max_bytes=100)
    path.chmod(0o600)
    assert read_private(path, max_bytes=3) == b"sec"
    (tmp_path / "link").symlink_to(path)
    assert read_private(tmp_path / "link", max_bytes=100) == b"secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_private_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(ValueError, match="belongs to user 65534 with mode 0600; expected user 0"):
        read_private(path, max_bytes=100)


def test_a_file_that_is_not_private_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ValueError, match="fifo: not a file"):
        read_private(tmp_path / "fifo", max_bytes=100)
    with pytest.raises(ValueError, match=r"Is a directory|not a file"):
        read_private(tmp_path, max_bytes=100)
    with pytest.raises(ValueError, match="none: No such file"):
        read_private(tmp_path / "none", max_bytes=100)


def test_a_lock_that_is_released_within_the_wait_can_be_had(tmp_path: Path) -> None:
    held = ExitStack()
    held.enter_context(lock_file(tmp_path / "lock", refusal="taken"))
    with pytest.raises(ValueError, match="taken"), lock_file(tmp_path / "lock", refusal="taken", wait_s=0.02):
        pass
    timer = threading.Timer(0.05, held.close)
    timer.start()
    with lock_file(tmp_path / "lock", refusal="taken", wait_s=60):
        timer.join()
