"""Builds networks of torchvision and timm, with the preprocessing those libraries document."""

from __future__ import annotations

import difflib
import importlib
import math
import warnings
from collections.abc import Collection
from typing import Any

from torch import nn

from edgecompress.core.types import Preprocess
from edgecompress.errors import ConfigError, MissingPackage, ModelError
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable


def torchvision_names() -> list[str]:
    """Returns the names of torchvision's image classifiers."""
    ensure_torchvision_importable()
    from torchvision import models

    return list(models.list_models(module=models))


def build_torchvision(name: str, *, classes: int | None) -> nn.Module:
    """Builds a classifier of torchvision with random weights.

    Raises:
        ConfigError: torchvision has no classifier of that name.
    """
    _check_known("torchvision", name, torchvision_names())
    from torchvision import models

    options = {} if classes is None else {"num_classes": classes}
    with warnings.catch_warnings():  # two old networks announce a change of their initialisation
        warnings.simplefilter("ignore", FutureWarning)
        network: nn.Module = models.get_model(name, weights=None, **options)
    return network


def torchvision_preprocess(name: str) -> Preprocess:
    """Returns the preprocessing of the first weights torchvision published for that network.

    Raises:
        ConfigError: torchvision has no classifier of that name.
    """
    _check_known("torchvision", name, torchvision_names())
    from torchvision import models

    transform = next(iter(models.get_model_weights(name))).transforms()
    return Preprocess(
        size=(transform.crop_size[0], transform.crop_size[-1]),
        resize=transform.resize_size[0],
        interpolation="bicubic" if transform.interpolation.value == "bicubic" else "bilinear",
        mean=tuple(transform.mean),
        std=tuple(transform.std),
    )


def build_timm(name: str, *, classes: int | None) -> nn.Module:
    """Builds a network of timm with random weights.

    Raises:
        MissingPackage: timm is not installed.
        ConfigError: timm has no network of that name.
        ModelError: timm refuses to build it.
    """
    timm = _import_timm(name)
    if not timm.is_model(name):
        _check_known("timm", name, timm.list_models())
    options = {} if classes is None else {"num_classes": classes}
    try:
        with warnings.catch_warnings():  # deprecated names and options of timm's own
            warnings.simplefilter("ignore")
            network: nn.Module = timm.create_model(name, pretrained=False, **options)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise ModelError(f"timm:{name}: timm could not build it: {error}") from error
    return network


def timm_preprocess(network: nn.Module) -> Preprocess:
    """Returns the preprocessing of timm's data configuration for a network it built."""
    timm_data: Any = importlib.import_module("timm.data")
    config: dict[str, Any] = timm_data.resolve_model_data_config(network)
    _, height, width = config["input_size"]
    return Preprocess(
        size=(height, width),
        resize=math.floor(min(height, width) / config["crop_pct"]),
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _import_timm(name: str) -> Any:  # noqa: ANN401  # timm has no type annotations to rely on
    ensure_torchvision_importable()  # timm imports it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import timm
    except ImportError:
        raise MissingPackage(
            f"timm:{name}: needs the timm extra; run: pip install 'edgecompress[timm]'"
        ) from None
    return timm


def _check_known(library: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = ", ".join(difflib.get_close_matches(name, known, n=5, cutoff=0.0))
        raise ConfigError(f"{library} model {name!r} is not known among {len(known)}; closest are: {close}")
