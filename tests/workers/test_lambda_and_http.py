"""Workers as functions: by the API of AWS, in AWS's own runtime, and by HTTP; and errors of these platforms."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from emulators import emulators, listening
from stub_server import Server, assert_right
from stub_tasks import LONG_S, computing

from siafu.workers import handler as handler_module
from siafu.workers import worker as worker_module
from siafu.workers.aws_lambda import LambdaPlatform
from siafu.workers.http_functions import HttpPlatform
from siafu.workers.lambda_package import LambdaConfig, _own_files, write_package, write_sam
from siafu.workers.lease import Lease
from siafu.workers.session import SessionLimits
from siafu.workers.signing import accept
from siafu.workers.supervisor import LeaseError, LeaseSupervisor
from siafu.workers.task_outcome import CompletedTask

LEASE = Lease("run", "worker-1", "127.0.0.1", 9, "00", time.time() + 86_400)
KEY = bytes.fromhex("5a" * 32)
Answer = tuple[int, dict[str, str], bytes]


class Request:
    """The parts of a functions-framework request that a worker reads."""

    def __init__(self, body: bytes) -> None:
        self.content_length, self._body = len(body), body

    def get_data(self, *, cache: bool) -> bytes:
        return self._body


@contextmanager
def answering(answer: Callable[[bytes], Answer]) -> Iterator[str]:
    """The address of an HTTP server that gives this answer to each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, headers, body = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Invalid credentials, and none of this machine's own."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


def aws_error(status: int, kind: str, said: str) -> Answer:
    body = json.dumps({"Type": "User", "Message": said, "message": said}).encode()
    return status, {"x-amzn-ErrorType": kind, "Content-Type": "application/json"}, body


def refusal(platform: LambdaPlatform | HttpPlatform) -> LeaseError:
    with pytest.raises(LeaseError) as caught:
        platform.run_worker(LEASE)
    return caught.value


@pytest.mark.usefixtures("_credentials")
@pytest.mark.parametrize(
    ("answer", "reason", "kind"),
    [
        (
            aws_error(404, "ResourceNotFoundException", "Function not found: arn:aws:…:av"),
            "there is no Lambda function 'av' (Function not found: arn:aws:…:av); deploy one from what 'siafu lambda",
            "fatal",
        ),
        (
            aws_error(429, "TooManyRequestsException", "Rate Exceeded."),
            "Lambda throttles: Rate Exceeded.",
            "throttled",
        ),
        (
            aws_error(413, "RequestTooLargeException", "6291556 byte payload is too large"),
            "Lambda refuses the lease as too large (413): 6291556 byte payload",
            "fatal",
        ),
        (
            aws_error(
                403, "AccessDeniedException", "User is not authorized to perform: lambda:InvokeFunction"
            ),
            "Lambda refuses: AccessDeniedException: User is not authorized",
            "fatal",
        ),
        (
            aws_error(500, "ServiceException", "try again"),
            "Lambda refuses: ServiceException: try again",
            "passing",
        ),
        (
            (200, {}, b'{"errorType": "CannotServe", "errorMessage": "holds another token"}'),
            "the function 'av' failed: CannotServe: holds another token",
            "passing",
        ),
        (
            (
                200,
                {"X-Amz-Function-Error": "Unhandled"},
                b'{"errorMessage": "Task timed out after 3 seconds"}',
            ),
            "the function 'av' failed: Error:",
            "passing",
        ),
        (
            (200, {}, b'{"errorType": "Runtime.ImportModuleError", "errorMessage": "No module named numpy"}'),
            "the function 'av' failed: Runtime.ImportModuleError: No module named numpy",
            "fatal",
        ),
    ],
    ids=["404", "429", "413", "403", "500", "error", "timed out", "import"],
)
def test_refusals_of_lambda_are_reported_and_classified(answer: Answer, reason: str, kind: str) -> None:
    with answering(lambda _: answer) as url:
        error = refusal(LambdaPlatform("av", key=KEY, endpoint_urls=[url]))
    assert reason in str(error)
    assert (error.fatal, error.throttled) == (kind == "fatal", kind == "throttled")


@pytest.mark.usefixtures("_credentials", "key")
def test_an_invocation_carries_the_lease_and_nothing_else() -> None:
    bodies = []
    with answering(lambda body: (bodies.append(body), (200, {}, b'{"tasks": 3}'))[1]) as url:
        LambdaPlatform("av", key=KEY, endpoint_urls=[url]).run_worker(LEASE)
    assert [accept(json.loads(body), os.environ) for body in bodies] == [LEASE]


@pytest.mark.usefixtures("_credentials")
def test_without_credentials_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = refusal(LambdaPlatform("av", key=KEY, endpoint_urls=["http://127.0.0.1:9"]))
    assert "there are no AWS credentials" in str(error)
    assert error.fatal


@pytest.mark.usefixtures("_credentials")
def test_without_a_region_or_a_server_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(LambdaPlatform("av", key=KEY, endpoint_urls=["http://127.0.0.1:9"]))
    assert "Lambda could not be reached" in str(error)
    assert not error.fatal
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ValueError, match="AWS Lambda cannot be called: You must specify a region"):
        LambdaPlatform("av", key=KEY)


@pytest.mark.parametrize(
    ("answer", "reason", "kind"),
    [
        ((404, {}, b"no such page"), "answered with 404: no such page", "fatal"),
        ((429, {}, b"slow down"), "answered with 429: slow down", "throttled"),
        ((413, {}, b""), "refuses the lease as too large", "fatal"),
        ((503, {}, b"no room"), "answered with 503: no room", "passing"),
        (
            (200, {}, b"<html>"),
            "answered b'<html>', which no worker does: is siafu deployed there?",
            "passing",
        ),
    ],
)
def test_answers_by_http_are_reported_and_classified(answer: Answer, reason: str, kind: str) -> None:
    with answering(lambda _: answer) as url:
        error = refusal(HttpPlatform(url, key=KEY))
    assert reason in str(error)
    assert (error.fatal, error.throttled) == (kind == "fatal", kind == "throttled")


def test_an_invalid_address_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match="workers are called at 'ftp://x', expected an address such as https"
    ):
        HttpPlatform("ftp://x", key=KEY)
    assert "could not be reached" in str(refusal(HttpPlatform("http://127.0.0.1:9/", key=KEY)))


@pytest.mark.usefixtures("key")
def test_workers_that_are_called_by_http_do_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_load_backend", lambda backend, setup: computing()(setup))

    def answer(body: bytes) -> Answer:
        return 200, {}, json.dumps(handler_module.serve_http(Request(body))).encode()

    with (
        answering(answer) as url,
        Server() as server,
        LeaseSupervisor(HttpPlatform(url, key=KEY)) as supervisor,
    ):
        supervisor.set_target(lambda: server.listener.issue_lease(seconds=30), 2)
        tasks = server.put(20)
        assert_right(server.wait(20), tasks)
        server.listener.close()


# The package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "siafu-worker.zip"
    write_package(path)
    return path


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    root = package.parent / "task"
    with zipfile.ZipFile(package) as held:
        held.extractall(root)
    return root


def test_the_package_is_small_and_the_same_whenever_it_is_written(package: Path, tmp_path: Path) -> None:
    assert package.stat().st_size < 50_000_000
    assert write_package(tmp_path / "again.zip") == package.stat().st_size
    assert (tmp_path / "again.zip").read_bytes() == package.read_bytes()


def test_the_package_needs_nothing_but_what_it_holds(unpacked: Path) -> None:
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name, _ in _own_files()
    ]
    assert "siafu.workers.handler" in modules
    outside = {name for name in modules if not name.startswith("siafu.workers")}
    wire = {f"siafu.wire.{name}" for name in ("frames", "handshake", "socket_stream", "tls")}
    assert outside == {"siafu", "siafu.files", "siafu.wire"} | wire
    assert not {"siafu.workers.listener", "siafu.workers.worker_processes"} & set(modules)
    script = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r})\n"
        f"import {', '.join(modules)}\n"
        f"import numpy; assert numpy.__file__.startswith({str(unpacked)!r})\n"
        f"import xxhash; assert xxhash.__file__.startswith({str(unpacked)!r})\n"
        "assert 'cryptography' not in sys.modules\n"
        "assert (numpy.ones((2, 3)) @ numpy.ones((3, 2))).sum() == 12\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, timeout=LONG_S)


def test_the_template_deploys_the_package(package: Path, tmp_path: Path) -> None:
    write_sam(
        tmp_path / "template.json",
        package=package,
        function=LambdaConfig(architecture="arm64", python="3.13"),
    )
    template = json.loads((tmp_path / "template.json").read_text())
    properties = template["Resources"]["Worker"]["Properties"]
    assert template["Transform"] == "AWS::Serverless-2016-10-31"
    assert properties["Handler"] == "siafu.workers.handler.handler"
    assert properties["CodeUri"] == "siafu-worker.zip"
    trust = {"SIAFU_LEASE_KEY": {"Ref": "LeaseKey"}, "SIAFU_LEASE_ADDRESSES": {"Ref": "LeaseAddresses"}}
    assert trust.items() <= properties["Environment"]["Variables"].items()
    assert template["Parameters"]["LeaseKey"]["NoEcho"]
    assert "Default" not in template["Parameters"]["LeaseKey"]
    assert (properties["Runtime"], properties["Architectures"]) == ("python3.13", ["arm64"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "riscv"}, "architecture is 'riscv', expected x86_64 or arm64"),
        ({"memory_mb": 64}, "memory_mb is 64, expected 128 to 10240"),
        ({"timeout_s": 901}, "timeout_s is 901, expected 1 to 900"),
    ],
)
def test_values_that_lambda_does_not_offer_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LambdaConfig(**change)


def test_a_wheel_that_is_not_of_numpy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"torch\.whl is no wheel of numpy for Linux"):
        write_package(tmp_path / "x.zip", wheels={"numpy": tmp_path / "torch.whl"})


# AWS's own runtime

HERE = Path(__file__).parent


@pytest.mark.usefixtures("_credentials", "_emulator", "key")
def test_functions_in_the_real_runtime_do_the_tasks_though_one_is_killed(unpacked: Path) -> None:
    killed: list[str] = []

    def on_done(done: CompletedTask) -> None:
        if not killed:
            killed.append(done.worker)
            usage = next(found for found in server.listener.usage if found.worker == done.worker)
            os.kill(usage.report["pid"], signal.SIGKILL)

    server = Server(on_done, limits=SessionLimits(silence_s=2.0))
    with emulators(3, unpacked, handler="stub_handler.handler", more=HERE) as places, server:
        platform = LambdaPlatform("function", key=KEY, endpoint_urls=listening(places))
        with LeaseSupervisor(platform) as supervisor:
            supervisor.set_target(lambda: server.listener.issue_lease(seconds=30), 3)
            tasks = server.put(60)
            assert_right(server.wait(60), tasks)
            server.listener.close()
    assert len(killed) == 1
    for usage in server.listener.usage:
        assert usage.worker in killed or usage.ended == ""
        assert len(usage.report["request_id"]) == 36


@pytest.mark.usefixtures("_credentials", "_emulator", "key")
def test_an_error_of_a_function_in_the_real_runtime_is_told(unpacked: Path) -> None:
    with emulators(1, unpacked, handler="stub_handler.handler", more=HERE) as places:
        error = refusal(LambdaPlatform("function", key=KEY, endpoint_urls=listening(places)))
    assert "the function 'function' failed: CannotServe: the graph server at 127.0.0.1:9:" in str(error)
