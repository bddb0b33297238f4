"""Models: shapes and parameter counts are those of the docstrings."""

import pytest
import torch

from labkit import models


def test_an_mlp_maps_images_to_logits_with_the_documented_parameters() -> None:
    model = models.mlp()
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert models.count_parameters(model) == 19_210


def test_a_deeper_mlp_counts_each_layer() -> None:
    assert models.count_parameters(models.mlp(5, (7, 11), 3)) == 5 * 7 + 7 + 7 * 11 + 11 + 11 * 3 + 3


def test_a_cnn_maps_images_to_logits_with_the_documented_parameters() -> None:
    model = models.small_cnn()
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert models.count_parameters(model) == 20_586


def test_a_cnn_takes_digits_and_colour_images() -> None:
    assert models.small_cnn(size=8)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert models.small_cnn(channels=3, size=32)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_cnn_refuses_a_size_that_cannot_be_halved_twice() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        models.small_cnn(size=30)


def test_a_transformer_block_has_the_documented_parameters() -> None:
    block = models.TransformerBlock(64, 4)
    assert block(torch.zeros(2, 5, 64)).shape == (2, 5, 64)
    assert models.count_parameters(block) == 12 * 64**2 + 13 * 64


def test_a_tiny_transformer_has_the_documented_parameters() -> None:
    model = models.TinyTransformer()
    assert model(torch.zeros(2, 7, dtype=torch.int64)).shape == (2, 7, 64)
    assert models.count_parameters(model) == 112_448


def test_a_causal_model_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = models.TinyTransformer(vocabulary=11).eval()
    tokens = torch.randint(0, 11, (1, 9))
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        models.TransformerBlock(10, 4)


def test_dropout_acts_in_training_only() -> None:
    block = models.TransformerBlock(8, 2, dropout=0.5)
    x = torch.randn(1, 4, 8)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
