"""What the rows of the scoreboard are called."""

DENSE, OURS, INT8, OURS_INT8 = "dense", "ours", "int8 alone", "ours + int8"
COMPRESSED = (OURS, "torch-pruning", "uniform thinning", "ALDS", "LR-S2", "SVD-NAS, as published")
"""Methods with a knob, whose networks are compared at equal milliseconds and trained alike."""
METHODS = (DENSE, *COMPRESSED, INT8, OURS_INT8)
"""All rows, in the order of the table."""

NETWORKS = {
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "fashion_vit": "transformer",
}
PLACES = {"pixel4-emulated": "emulated Pixel 4", "litert": "LiteRT here", "onnxruntime": "onnxruntime here"}
"""Both in the order of tables and panels."""


def place_name(model: str, runtime: str) -> str:
    """Returns what readers call a network and where it runs."""
    return f"{NETWORKS.get(model, model)}, {PLACES.get(runtime, runtime)}"


def place_order(model: str, runtime: str) -> tuple[int, int]:
    """Sorts networks and runtimes; those that are not known come last."""
    return _position(model, NETWORKS), _position(runtime, PLACES)


def _position(name: str, names: dict[str, str]) -> int:
    return list(names).index(name) if name in names else len(names)
