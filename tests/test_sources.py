"""What a user types after --model becomes a network, or one line that says what to type instead."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from edgecompress.core.types import ModelRef
from edgecompress.errors import ConfigError, EdgeCompressError, MissingPackage, ModelError, WeightsError
from edgecompress.nets.sources import LoadedModel, build_module, load_model, zoo_entries

SMALL = {"input_size": (16, 16)}

NETWORK = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, classes=5):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, padding=1)
            self.body = nn.Conv2d(4, 8, 3, padding=1)
            self.hidden = nn.Linear(8, 6)
            self.head = nn.Linear(6, classes)

        def forward(self, x):
            x = self.body(self.stem(x)).relu().mean((2, 3))
            return self.head(self.hidden(x))

    def model():
        return Net()

    def needs_width(width):
        return Net(width)

    def makes_nothing():
        return 3

    def divides():
        return 1 / 0

    ready = Net()
    number = 3
"""


def write(path: Path, code: str) -> Path:
    path.write_text(textwrap.dedent(code))
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "my_net.py", NETWORK)


def refused(kind: type[EdgeCompressError], source: str, **options) -> str:
    with pytest.raises(kind) as error:
        load_model(source, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


def assert_rebuilds(loaded: LoadedModel) -> None:
    """The reference, written and read again, leads to a network the weights fit into."""
    ref = ModelRef.model_validate_json(loaded.ref.model_dump_json())
    rebuilt = build_module(ref)
    assert not rebuilt.training
    rebuilt.load_state_dict(loaded.module.state_dict())
    image = torch.randn(1, *ref.input_shape)
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(image), loaded.module(image))


def test_a_zoo_model_comes_with_its_input_and_targets():
    loaded = load_model("zoo:resnet20")
    entry = zoo_entries()["resnet20"]
    assert not loaded.module.training
    assert (loaded.ref.classes, loaded.ref.preprocess) == (entry.classes, entry.preprocess)
    assert len(loaded.targets) == 18
    assert loaded.random_weights
    assert_rebuilds(loaded)


def test_the_number_of_classes_can_be_chosen():
    loaded = load_model("zoo:resnet20", classes=3)
    assert loaded.ref.classes == 3
    assert_rebuilds(loaded)


def test_a_checkpoint_is_loaded_and_remembered_by_path_and_hash(tmp_path, monkeypatch):
    saved = load_model("zoo:resnet20").module
    with torch.no_grad():
        saved.linear.bias.fill_(7)
    torch.save({"state_dict": {f"module.{n}": t for n, t in saved.state_dict().items()}}, tmp_path / "net.th")
    monkeypatch.chdir(tmp_path)
    loaded = load_model("zoo:resnet20", weights="net.th")
    assert torch.equal(loaded.module.linear.bias, saved.linear.bias)
    assert loaded.ref.weights == str(tmp_path / "net.th")
    assert loaded.ref.weights_sha256 is not None and len(loaded.ref.weights_sha256) == 64
    assert not loaded.random_weights


def test_weights_that_come_along_are_used_and_hashed():
    loaded = load_model("zoo:efficientnet_lite0")
    assert loaded.ref.weights is None
    assert loaded.ref.weights_sha256 is not None
    assert not loaded.random_weights
    text = refused(ModelError, "zoo:efficientnet_lite0", classes=3)
    assert "has 1000 classes, not 3; pass --weights" in text


def test_a_checkpoint_for_other_classes_does_not_fit(tmp_path):
    torch.save(load_model("zoo:resnet20", classes=3).module.state_dict(), tmp_path / "net.pth")
    text = refused(WeightsError, "zoo:resnet20", weights=tmp_path / "net.pth")
    assert "linear.weight is (3, 64) in the file and (10, 64) in the model" in text


def test_random_weights_are_the_same_every_time_and_disturb_nobody():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = load_model("zoo:resnet20").module.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    other = load_model("zoo:resnet20").module.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_is_found_again_from_anywhere(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_model("my_net.py:Net", **SMALL)
    assert loaded.ref.source == f"{file}:Net"
    monkeypatch.chdir("/")
    assert_rebuilds(loaded)


def test_a_file_without_a_factory_means_model(file):
    assert load_model(str(file), **SMALL).ref.source == f"{file}:model"


def test_targets_of_unknown_networks_leave_out_the_first_convolution_and_the_classifier(file):
    assert load_model(f"{file}:Net", **SMALL).targets == ("body", "hidden")


def test_a_network_brings_its_own_weights(tmp_path):
    code = (
        NETWORK
        + """
    def trained():
        net = Net()
        nn.init.constant_(net.head.bias, 3.0)
        return net
    """
    )
    loaded = load_model(f"{write(tmp_path / 'net.py', code)}:trained", **SMALL)
    assert torch.equal(loaded.module.head.bias, torch.full((5,), 3.0))
    assert not loaded.random_weights


def test_a_file_may_import_its_neighbours_and_leaves_the_import_path_alone(file, tmp_path):
    write(
        tmp_path / "outer.py",
        "from my_net import Net\n\ndef model():\n    from my_net import Net as Again\n    return Again()\n",
    )
    before = list(sys.path)
    assert load_model(str(tmp_path / "outer.py"), **SMALL).ref.classes == 5
    assert sys.path == before


def test_a_python_module_is_imported(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    loaded = load_model("python:my_net:Net", **SMALL)
    assert loaded.ref.source == "python:my_net:Net"
    assert_rebuilds(loaded)


def test_user_code_gets_imagenet_input_unless_told_otherwise(file):
    plain = load_model(str(file)).ref.preprocess
    assert (plain.size, plain.resize, plain.mean[0]) == ((224, 224), 256, 0.485)
    small = load_model(str(file), input_size=(32, 24)).ref.preprocess
    assert (small.size, small.resize) == ((32, 24), 24)
    own = load_model(str(file), mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0), **SMALL).ref.preprocess
    assert (own.mean, own.std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))


def test_grey_networks_are_scaled_to_plus_minus_one(tmp_path):
    path = write(
        tmp_path / "grey.py",
        "from torch import nn\ndef model(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n",
    )
    loaded = load_model(str(path), channels=1, input_size=(8, 8))
    assert loaded.ref.input_shape == (1, 8, 8)
    assert (loaded.ref.preprocess.mean, loaded.ref.preprocess.std) == ((0.5,), (0.5,))


def test_a_resized_library_model_keeps_its_margin():
    assert load_model("torchvision:mobilenet_v2", input_size=(112, 112)).ref.preprocess.resize == 128


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"mean": (0.5,)}, "1 means and 3 stds"),
        ({"channels": 1, "mean": (0.5, 0.5)}, "2 means and 1 stds for 1 channels"),
        ({"std": (1.0, 0.0, 1.0)}, "must be greater than 0"),
        ({"input_size": (0, 8)}, "0x8: both sides must be at least 1"),
        ({"channels": 0}, "0 channels: there must be at least 1"),
        ({"classes": 0}, "0 classes: there must be at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(file, options, wanted):
    assert wanted in refused(ConfigError, str(file), **options)


@pytest.mark.parametrize(
    ("factory", "wanted"),
    [
        ("missing", "has no 'missing'; known are: Net, model, needs_width, makes_nothing, divides"),
        ("needs_width", "'needs_width' needs width; name one without arguments"),
        ("makes_nothing", "'makes_nothing' returned type int; return an nn.Module"),
        ("divides", "calling 'divides' failed: ZeroDivisionError: division by zero (line 26 of my_net.py)"),
        ("ready", "'ready' is of type Net; name a function or class"),
        ("number", "'number' is of type int; name a function or class"),
    ],
)
def test_a_factory_that_cannot_be_used_is_explained(file, factory, wanted):
    text = refused(ModelError, f"{file}:{factory}")
    assert text.startswith(f"{file}:{factory}: ")
    assert wanted in text


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (
            "import no_such_package",
            "ModuleNotFoundError: No module named 'no_such_package' (line 1 of net.py)",
        ),
        ("x = undefined", "NameError: name 'undefined' is not defined (line 1 of net.py)"),
        ("import sys; sys.exit(3)", "SystemExit: 3 (line 1 of net.py)"),
        ("def (:", "SyntaxError: invalid syntax (net.py, line 1)"),
    ],
)
def test_a_file_that_does_not_run_is_explained(tmp_path, code, wanted):
    assert wanted in refused(ModelError, str(write(tmp_path / "net.py", code)))


def test_a_missing_file_or_module_is_explained(tmp_path):
    assert "there is no such file" in refused(ModelError, f"{tmp_path}/none.py:model")
    assert "No module named 'no_such_module'" in refused(ModelError, "python:no_such_module:model")
    assert "write python:pkg.mod:factory" in refused(ConfigError, "python:torch.nn")


def test_a_network_that_does_not_run_on_its_input_is_explained(file):
    text = refused(ModelError, str(file), channels=1, input_size=(16, 16))
    assert "does not run on a 16x16 image of 1 channels: RuntimeError" in text
    assert "line 13 of my_net.py" in text
    assert text.endswith("pass what it takes as --input-size and --channels")
    fixed = write(
        file.parent / "fixed.py", "from torch import nn\n\ndef model():\n    return nn.Linear(96, 5)\n"
    )
    assert "--input-size (224x224 by default)" in refused(ModelError, str(fixed))


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [("nn.Conv2d(3, 4, 3)", "shape (1, 4, 14, 14)"), ("nn.LSTM(16, 2)", None), ("Pair()", "type tuple")],
)
def test_a_network_that_returns_no_logits_is_explained(tmp_path, expression, wanted):
    code = f"""
    from torch import nn
    class Pair(nn.Module):
        def forward(self, x): return x, x
    def model(): return {expression}
    """
    text = refused(ModelError, str(write(tmp_path / "net.py", code)), **SMALL)
    assert wanted is None or f"returned {wanted} for one image" in text


def test_another_number_of_classes_than_the_code_makes_is_refused(file):
    assert "returns 5 classes, not 9" in refused(ModelError, str(file), classes=9, **SMALL)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("resnet20", "resnet20: has no source prefix; did you mean zoo:resnet20?"),
        ("alexnet", "alexnet: has no source prefix; did you mean torchvision:alexnet?"),
        ("nonsense", "nonsense: has no source prefix; write zoo:, torchvision:, timm:, cells:, python: or"),
        ("hub:resnet20", "prefix 'hub' is not known; known are: zoo:"),
        ("net.pth", "net.pth: is a checkpoint; name the network with zoo:"),
        ("zoo:resnet21", "zoo model 'resnet21' is not known; known are: "),
        ("torchvision:resnet19", "'resnet19' is not known among"),
        ("timm:resnet19", "'resnet19' is not known among"),
        ("", "has no source prefix"),
    ],
)
def test_a_source_that_is_not_understood_says_what_to_type(source, wanted):
    assert wanted in refused(ConfigError, source)


def test_close_names_are_suggested():
    assert "resnet18" in refused(ConfigError, "torchvision:resnet19")


def test_torchvision_networks_come_with_their_documented_input():
    loaded = load_model("torchvision:squeezenet1_1", classes=4)
    assert loaded.ref.classes == 4
    assert loaded.ref.preprocess.resize == 256
    assert "classifier.1" not in loaded.targets  # the classifier is a convolution here
    assert "features.0" not in loaded.targets
    assert len(loaded.targets) == 24
    assert_rebuilds(loaded)


def test_timm_networks_come_with_their_documented_input():
    loaded = load_model("timm:test_vit.r160_in1k", classes=4)
    preprocess = loaded.ref.preprocess
    assert preprocess.size == (160, 160)
    assert preprocess.resize == int(160 / 0.95)
    assert "blocks.0.attn.qkv" in loaded.targets
    assert "patch_embed.proj" not in loaded.targets and "head" not in loaded.targets
    assert_rebuilds(loaded)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # makes `import timm` fail as if it were not installed
    assert "pip install 'edgecompress[timm]'" in refused(MissingPackage, "timm:resnet18")


def test_layers_whose_weights_are_read_by_their_parent_are_no_targets(tmp_path):
    code = """
    from torch import nn

    class Standardised(nn.Conv2d):
        def forward(self, x):
            return nn.functional.conv2d(x, self.weight - self.weight.mean())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 4, 4)
            self.standardised = Standardised(8, 8, 1)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.mlp = nn.Linear(8, 8)
            self.unused = nn.Linear(8, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = self.layer(self.standardised(self.stem(x)).flatten(2).transpose(1, 2))
            return self.head(self.mlp(self.attention(x, x, x)[0]).mean(1))
    """
    assert load_model(f"{write(tmp_path / 'net.py', code)}:Net", **SMALL).targets == ("mlp",)


def test_libraries_are_imported_only_when_needed_and_without_a_warning():
    code = """
    import sys
    from edgecompress.nets.sources import load_model, zoo_entries
    from edgecompress.nets.torchvision_compat import ensure_torchvision_importable

    load_model("zoo:resnet20")
    assert zoo_entries() and not {"torchvision", "timm", "efficientnet_lite_pytorch"} & set(sys.modules)
    ensure_torchvision_importable()
    ensure_torchvision_importable()
    import torchvision.transforms
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_of_a_loaded_model_is_in_eval_mode(file):
    loaded = load_model(str(file), **SMALL)
    assert not any(child.training for child in loaded.module.modules())
    assert isinstance(loaded.module, nn.Module)


def test_networks_of_other_precision_become_float32(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "def model():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).double()\n"
    )
    loaded = load_model(f"{file}", input_size=(8, 8))
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
