"""Batch norms written as one product and one sum compute the same."""

import pytest
import torch
from torch import nn

from edgecompress.devices.litert_graph import count_operators
from edgecompress.export import tflite_litert_torch
from edgecompress.export.tflite_format import run
from edgecompress.nets.plain_layers import write_batch_norms_plainly_


def lively(norm):
    with torch.no_grad():
        for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 2.0)
    return norm


@pytest.fixture
def maps():
    return torch.randn(2, 4, 9, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "layer",
    [
        lively(nn.BatchNorm2d(4)),
        nn.BatchNorm2d(4, affine=False),
    ],
    ids=str,
)
def test_what_is_written_otherwise_computes_the_same(layer, maps):
    network = nn.Sequential(layer).eval()
    expected = network(maps)
    assert write_batch_norms_plainly_(network) == 1
    assert network[0] is not layer
    torch.testing.assert_close(network(maps), expected)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.InstanceNorm2d(4),
    ],
    ids=str,
)
def test_what_would_change_stays(layer):
    network = nn.Sequential(layer).eval()
    assert write_batch_norms_plainly_(network) == 0
    assert network[0] is layer


class BeforeTheConvolution(nn.Module):
    """A batch norm that no convolution before it can take."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.conv = lively(nn.BatchNorm2d(3)), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(torch.relu(self.norm(x))).mean((2, 3))


def test_files_have_one_product_and_one_sum_per_batch_norm(tmp_path):
    network, file = BeforeTheConvolution().eval(), tmp_path / "model.tflite"
    tflite_litert_torch.convert(network, (3, 8, 8), file)
    assert isinstance(network.norm, nn.BatchNorm2d)  # the network itself is left alone
    assert count_operators(file) == {"ADD": 1, "CONV_2D": 1, "MEAN": 1, "MUL": 1}
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)
