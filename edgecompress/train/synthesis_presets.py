"""Settings for synthetic images by name: ours, and those published with SVD-NAS for three networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from edgecompress.core.plugins import pick
from edgecompress.core.synthesis_results import SynthesisSettings
from edgecompress.errors import ConfigError


@dataclass(frozen=True)
class SynthesisPreset:
    """Settings that go together."""

    name: str
    summary: str
    settings: SynthesisSettings


_OURS = SynthesisSettings(
    preset="ours",
    statistics="batch",
    scale="relative",
    input_weight=1.0,
    class_weight=1.0,
    start="smooth",
    learning_rate=0.1,
    schedule="cosine",
    iterations=200,
    batch_images=128,
)
_RESNET18 = SynthesisSettings(
    preset="paper-resnet18",
    statistics="image",
    scale="sum",
    input_weight=1.0,
    start="faint",
    learning_rate=0.5,
    schedule="plateau",
    iterations=500,
    batch_images=32,
)
_MOBILENETV2 = _RESNET18.model_copy(
    update={"preset": "paper-mobilenetv2", "scale": "mean", "learning_rate": 0.25}
)
_EFFICIENTNET = _RESNET18.model_copy(
    update={
        "preset": "paper-efficientnet",
        "scale": "mean",
        "input_weight": 100.0,
        # as in the published code: after the expansions of most blocks, and the last one
        "skipped_norms": (*range(6, 46, 3), 48),
    }
)
SYNTHESIS_PRESETS = {
    preset.name: preset
    for preset in (
        SynthesisPreset("ours", "statistics of whole batches, classes evenly distributed", _OURS),
        SynthesisPreset(
            "paper-resnet18", "as published: each image by itself, sums over channels", _RESNET18
        ),
        SynthesisPreset("paper-mobilenetv2", "as published: means over channels", _MOBILENETV2),
        SynthesisPreset("paper-efficientnet", "as published, for EfficientNet-B0 alone", _EFFICIENTNET),
    )
}
"""By name."""


def pick_settings(preset: str, given: Mapping[str, object]) -> SynthesisSettings:
    """Returns the settings of a preset, with those changed that are given and not None.

    Raises:
        ConfigError: there is no such preset, or a setting cannot have that value.
    """
    found = pick(SYNTHESIS_PRESETS, preset, what="preset").settings.model_dump()
    changed = {key: value for key, value in given.items() if value is not None}
    try:
        return SynthesisSettings.model_validate(found | changed)
    except ValidationError as error:
        fault = error.errors()[0]
        where, said = str(fault["loc"][0]).replace("_", "-"), fault["msg"].lower()
        raise ConfigError(f"--{where} {fault['input']!r}: {said}") from None
