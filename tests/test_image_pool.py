"""The images of a gradient search and their targets."""

import pytest
import torch
from gradient_problems import labelled, unlabelled
from small_nets import images, small_net

from edgecompress.errors import ModelError
from edgecompress.search.image_pool import make_pool, task_loss
from edgecompress.train.images import step_indices

MODEL = small_net().requires_grad_(False)


@pytest.mark.parametrize(("count", "size"), [(10, 4), (7, 7), (5, 8), (6, 3)])
def test_every_image_is_seen_once_before_any_is_seen_again(count, size):
    size = min(size, count)
    seen = torch.cat([step_indices(count, size, step, 0) for step in range(3 * count)])
    assert len(seen) == 3 * count * size
    for turn in seen[: len(seen) // count * count].reshape(-1, count):
        assert sorted(turn.tolist()) == list(range(count))
    assert len({tuple(turn) for turn in seen.reshape(-1, count).tolist()}) > 1


def test_images_come_with_their_own_targets():
    batches = [(images(3, seed=1), torch.tensor([1, 2, 3])), (images(2, seed=2), torch.tensor([4, 5]))]
    pool = make_pool(MODEL, batches)
    found, targets = pool.take(torch.tensor([4, 0, 2]))
    assert targets.tolist() == [5, 1, 3]
    assert torch.equal(found, torch.stack([batches[1][0][1], batches[0][0][0], batches[0][0][2]]))


def test_labels_make_the_usual_cross_entropy():
    pool = make_pool(MODEL, labelled(MODEL))
    found, targets = pool.take(torch.arange(24))
    expected = -MODEL(found).log_softmax(1)[torch.arange(24), targets].sum()
    torch.testing.assert_close(task_loss(MODEL(found), targets), expected)


def test_without_labels_the_dense_model_has_the_least_loss_and_it_is_its_entropy():
    pool = make_pool(MODEL, unlabelled())
    found, targets = pool.take(torch.arange(24))
    own = float(task_loss(MODEL(found), targets))
    assert own == pytest.approx(float(torch.special.entr(MODEL(found).softmax(1)).sum()), rel=1e-4)
    assert own > 0
    assert float(task_loss(MODEL(found) * 1.1, targets)) > own
    assert float(task_loss(small_net(seed=1)(found).detach(), targets)) > own


def test_the_dense_models_answers_pull_at_others_only_where_they_differ_and_never_at_the_dense_model():
    teacher = small_net().requires_grad_(True)
    pool = make_pool(teacher, unlabelled())
    assert not pool.targets.requires_grad
    found, targets = pool.take(torch.arange(24))
    logits = teacher(found).detach().requires_grad_()
    (same,) = torch.autograd.grad(task_loss(logits, targets), logits)
    assert float(same.abs().max()) < 1e-6
    other = (logits.detach() + torch.randn(logits.shape)).requires_grad_()
    (apart,) = torch.autograd.grad(task_loss(other, targets), other)
    torch.testing.assert_close(apart, other.detach().softmax(1) - targets)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_labels_of_some_batches_only_are_not_used():
    (first, *rest) = unlabelled()
    pool = make_pool(MODEL, [(first[0], torch.zeros(8, dtype=torch.long)), *rest])
    assert pool.targets.shape == (24, 6)


def test_outputs_that_are_not_finite_are_an_error():
    model = small_net()
    model.head.bias.data[0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        make_pool(model, unlabelled())
