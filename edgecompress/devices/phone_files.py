"""What we keep on a phone: one folder with the benchmark program and the files it measures.

Files are named by their hash: nothing of a user's file name reaches the phone's shell, and what is
already there is not pushed again.
"""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.device import Device
from edgecompress.core.store import sha256_of
from edgecompress.devices.benchmark_model import last_line
from edgecompress.devices.contract import Options
from edgecompress.devices.transport import Transport
from edgecompress.errors import DeviceError, ExportError

FOLDER = "/data/local/tmp/edgecompress"
RUNNER = "benchmark_model"
WHERE_TO_GET_IT = (
    "get android_aarch64_benchmark_model from the LiteRT documentation, page Performance measurement "
    "(developers.google.com/edge/litert/models/measurement), and pass it with --benchmark-binary"
)
SHORT_TIMEOUT_S = 20.0
"""Of commands that do nothing but look."""


def make_folder(transport: Transport) -> None:
    """Makes our folder, and removes what broken pushes left in it.

    Raises:
        DeviceError: it cannot be made.
    """
    script = 'mkdir -p "$0" && rm -f "$0"/*.part'
    done = transport.run(["sh", "-c", script, FOLDER], timeout_s=SHORT_TIMEOUT_S)
    if done.code != 0:
        raise DeviceError(f"{transport.where}: {FOLDER} could not be made: {last_line(done.err + done.out)}")


def place_model(transport: Transport, file: Path, *, timeout_s: float) -> str:
    """Pushes a file unless it is there already; returns its path on the phone.

    Raises:
        ExportError: the file cannot be read.
        DeviceError: the device does not answer or has no room.
    """
    try:
        remote = f"{FOLDER}/{sha256_of(file)}.tflite"
        _push_once(transport, file, remote, timeout_s=timeout_s)
    except OSError as error:
        raise ExportError(f"{file}: cannot be read: {error.strerror or error}") from None
    return remote


def place_runner(transport: Transport, device: Device, options: Options) -> tuple[str, str]:
    """Pushes the benchmark program unless it is there; returns its path and what tells its build from others.

    Raises:
        DeviceError: there is none, here or there.
    """
    local = options.benchmark_binary or (
        device.benchmark_binary and Path(device.benchmark_binary).expanduser()
    )
    if not local:
        return _runner_already_there(transport)
    if not local.is_file():
        raise DeviceError(f"{local}: there is no such file; {WHERE_TO_GET_IT}")
    sha256 = sha256_of(local)
    remote = f"{FOLDER}/{RUNNER}-{sha256}"
    _push_once(transport, local, remote, timeout_s=options.timeout_s)
    transport.run(["chmod", "755", remote], timeout_s=SHORT_TIMEOUT_S)  # a download is not executable
    return remote, f"sha256:{sha256[:12]}"


def _runner_already_there(transport: Transport) -> tuple[str, str]:
    """Finds a runner its owner put there, or else the one we pushed last."""
    listed = transport.run(["ls", "-t", FOLDER], timeout_s=SHORT_TIMEOUT_S).out.split()
    named_so = [name for name in listed if name == RUNNER or name.startswith(f"{RUNNER}-")]
    names = sorted(named_so, key=lambda name: name != RUNNER)  # keeps the newest first among ours
    if not names:
        raise DeviceError(f"{transport.where}: {RUNNER} is not in {FOLDER}; {WHERE_TO_GET_IT}")
    remote = f"{FOLDER}/{names[0]}"
    hashed = transport.run(["sha256sum", remote], timeout_s=SHORT_TIMEOUT_S)
    return remote, f"sha256:{hashed.out[:12]}" if hashed.code == 0 else "unknown"


def _push_once(transport: Transport, local: Path, remote: str, *, timeout_s: float) -> None:
    counted = transport.run(["wc", "-c", remote], timeout_s=SHORT_TIMEOUT_S)
    if counted.code != 0 or counted.out.split()[:1] != [str(local.stat().st_size)]:
        transport.push(local, remote, timeout_s=timeout_s)
