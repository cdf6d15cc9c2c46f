"""Models by name have the published numbers of parameters."""

from __future__ import annotations

import pytest

from tokenmill.training.counts import count
from tokenmill.training.settings import ModelSettings
from tokenmill.training.sizes import SIZES


@pytest.mark.parametrize(
    ("size", "vocab_size", "sequence_length", "parameters"),
    [
        ("gpt2-small", 50_257, 1024, 124_439_808),
        ("gpt2-medium", 50_257, 1024, 354_823_168),
        ("gpt2-large", 50_257, 1024, 774_030_080),
        ("gpt2-xl", 50_257, 1024, 1_557_611_200),
        ("smollm-135m", 49_152, 2048, 134_515_008),
        ("tinyllama-1.1b", 32_000, 2048, 1_100_048_384),
        ("llama-3.2-1b", 128_256, 2048, 1_235_814_400),
    ],
)
def test_sizes_have_the_published_parameters(size: str, vocab_size: int, sequence_length: int, parameters: int) -> None:
    model = ModelSettings.model_validate({"size": size})
    assert count(model, vocab_size=vocab_size, sequence_length=sequence_length).parameters == parameters


def test_a_size_is_short_for_its_dimensions_and_a_given_one_goes_before_it() -> None:
    named = ModelSettings.model_validate({"size": "gpt2-small", "layers": 2})
    assert named.layers == 2
    assert named.model_dump(exclude={"size"}) == ModelSettings(layers=2, d_model=768, heads=12).model_dump(
        exclude={"size"}
    )
    assert ModelSettings.model_validate(named.model_dump()) == named


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ValueError, match="gpt2-small"):
        ModelSettings.model_validate({"size": "gpt5"})
    assert len(SIZES) == 7
