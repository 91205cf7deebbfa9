"""The doctor finds what is there, says what is missing, and never fails."""

import builtins
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from siafu import cores, doctor, machine, native
from siafu.doctor import Finding, examine, openmp_libraries


def found(environ: dict[str, str]) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(environ)}


def test_every_subject_is_examined_once() -> None:
    names = [finding.name for finding in examine({})]
    assert len(set(names)) == len(names)
    expected = {"Python", "torch", "compiled core", "OpenMP", "threads", "cores", "memory", "memory limit"}
    assert expected | {
        "huge pages",
        "data home",
        "pymetis",
        "kaminpar",
        "ray",
        "boto3",
        "grpc",
        "optuna",
        "torch_geometric",
    } <= set(names)


def test_what_is_missing_comes_with_advice() -> None:
    for finding in examine({"SIAFU_DATA": "/nowhere/at/all"}):
        assert finding.level in ("ok", "note", "missing")
        assert finding.level != "missing" or finding.advice


def test_a_missing_core_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.core, "kernels", None)
    core = found({})["compiled core"]
    assert core.level == "missing"
    assert "plain torch" in core.value


def test_the_core_that_is_there_names_its_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", lambda: True)
    monkeypatch.setattr(native, "instruction_set", lambda: "avx512")
    assert found({})["compiled core"] == Finding("compiled core", "avx512")


def test_the_data_home_is_listed(tmp_path: Path) -> None:
    for name in ("cora.npz", "temporal/chess.npz", "mine/manifest.json", "other/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    home = found({"SIAFU_DATA": str(tmp_path)})["data home"]
    assert home == Finding("data home", f"{tmp_path}: chess, cora, mine")


def test_a_long_data_home_is_cut_short(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"set{number:02}.npz").write_bytes(b"")
    value = found({"SIAFU_DATA": str(tmp_path)})["data home"].value
    assert value.endswith("set07 and 12 more")


def test_a_data_home_that_was_named_but_is_not_there_is_missing(tmp_path: Path) -> None:
    home = found({"SIAFU_DATA": str(tmp_path / "absent")})
    assert home["data home"].level == "missing"
    assert str(tmp_path) in home["disk of the data home"].value  # the nearest folder that exists


def test_an_extra_is_installed_or_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc" else object())
    extras = found({})
    assert extras["ray"].level == "ok"
    assert (extras["grpc"].level, extras["grpc"].advice) == ("note", "pip install 'siafu[sites]'")


def test_two_openmp_libraries_are_told_apart(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 fd:00 1 {}\n"
    paths = [
        "/a b/libgomp.so.1",
        "/a b/libgomp.so.1",
        "/c/libomp-1f3.so",
        "/c/libgompertz.so",
        "/d/libiomp5.so",
    ]
    maps.write_text("7f00-7f01 rw-p 00000000 00:00 0\n" + "".join(line.format(path) for path in paths))
    assert openmp_libraries(maps) == ["/a b/libgomp.so.1", "/c/libomp-1f3.so", "/d/libiomp5.so"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list loaded libraries")
def test_torch_and_the_core_share_one_openmp_library() -> None:
    assert found({})["OpenMP"].level == "ok"


def test_several_openmp_libraries_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "openmp_libraries", lambda: ["/a/libgomp.so.1", "/b/libgomp.so.1"])
    finding = doctor._try("OpenMP", doctor._openmp)
    if Path("/proc/self/maps").exists():
        assert (finding.level, finding.value) == ("note", "2 libraries: /a/libgomp.so.1, /b/libgomp.so.1")


def test_threads_held_back_by_the_environment_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 1000)
    threads = found({"OMP_NUM_THREADS": "1"})["threads"]
    assert threads.level == "note"
    assert "by OMP_NUM_THREADS=1" in threads.value
    assert "some cores stay idle" in threads.advice
    assert found({})["threads"].level == "ok"


def test_more_threads_than_usable_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    threads = found({"OMP_NUM_THREADS": "4"})["threads"]
    assert (threads.level, threads.value) == ("note", "4, by OMP_NUM_THREADS=4")
    assert found({})["threads"].value == "1, as many as usable cores"


@pytest.mark.parametrize(
    ("affinity", "quota", "usable", "why"),
    [
        (4, None, 4, "the affinity of this process allows 4"),
        (8, 1.5, 2, "the control group has a quota of 1.5 cores"),
        (3, 6.0, 3, "the affinity of this process allows 3"),
        (8, None, 8, ""),
    ],
)
def test_what_limits_the_cores_is_said(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, usable: int, why: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "affinity_cores", lambda: affinity)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: quota)
    finding = found({})["cores"]
    assert finding.value.startswith(f"{usable} of 8, ")
    assert finding.level == ("note" if why else "ok")
    assert finding.advice.startswith(why)


def test_torch_that_does_not_load_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise ImportError("libtorch_cpu.so: cannot open shared object file")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    torch = found({})["torch"]
    assert torch.level == "missing"
    assert "libtorch_cpu.so" in torch.value


def test_a_probe_that_fails_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such luck")

    for target in (machine, cores, doctor):
        for name in (
            "cpu_model",
            "usable_cores",
            "cgroup_memory_bytes",
            "openmp_libraries",
            "_data_sets",
            "_home",
        ):
            monkeypatch.setattr(target, name, fail, raising=False)
    monkeypatch.setattr("shutil.disk_usage", fail)
    findings = found({})
    assert findings["cores"].value == "could not be examined: RuntimeError: no such luck"
    assert findings["disk of this folder"].level == "note"
    assert findings["Python"].level == "ok"
