"""Pretrained weights, frozen layers and adapters of any network."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from coterie.clients.models.adaptation import adapted, is_inside, matching, personal_names
from coterie.clients.models.options import Adaptation
from coterie.clients.models.transformer import Adapted

NAMES = ["encoder.0.mlp.weight", "encoder.0.norm.weight", "encoder.1.mlp.weight", "fc.weight",
         "fc.bias"]  # fmt: skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def trainable(module: nn.Module) -> list[str]:
    return [name for name, value in module.named_parameters() if value.requires_grad]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("fc", NAMES[3:]),
        ("head", NAMES[3:]),  # no such name: the last layer
        ("body", NAMES[:3]),
        ("batch-norm", NAMES[1:2]),
        ("fc.bias", NAMES[4:]),
        ("encoder.*.mlp", [NAMES[0], NAMES[2]]),
        ("norm, fc.bias", [NAMES[1], NAMES[4]]),
        ("encoder.1", [NAMES[2]]),
        ("*", NAMES),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert matching(NAMES, pattern, NAMES[1:2]) == expected


def test_a_layer_called_head_is_meant_by_that_name() -> None:
    assert matching(["head.weight", "last.weight"], "head") == ["head.weight"]


def test_a_pattern_that_names_nothing_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r'"f" matches .*; the modules are encoder.0.mlp, .*fc'):
        matching(NAMES, "f")


def test_frozen_layers_are_not_trained() -> None:
    assert trainable(adapted(network(), Adaptation(frozen="0, 2.bias"))) == [
        "2.weight", "4.weight", "4.bias",
    ]  # fmt: skip


def test_trained_weights_but_a_head_for_other_classes(tmp_path: Path) -> None:
    file = tmp_path / "trained.safetensors"
    trained = nn.Sequential(*network()[:4], nn.Linear(6, 9))
    save_file(trained.state_dict(), file)
    module = network()
    before = module.state_dict()["4.weight"].clone()
    after = adapted(module, Adaptation(weights=str(file))).state_dict()
    assert torch.equal(after["0.weight"], trained.state_dict()["0.weight"])
    assert torch.equal(after["4.weight"], before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "/none.safetensors"}, "no such file"),
        ({"frozen": "*"}, "leaves nothing to train"),
        ({"personal": "*"}, "leaves nothing to share"),
        (
            {"personal": "fc"},
            'model.personal = "fc": "fc" matches no parameter; the modules are 0, 2',
        ),
        ({"lora_rank": 2, "lora_layers": "conv"}, 'model.lora-layers = "conv": "conv" matches'),
    ],
)
def test_what_cannot_be_done_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        adapted(network(), Adaptation(**options))


def test_weights_of_another_network(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    save_file({"conv.weight": torch.ones(2)}, file)
    with pytest.raises(ValueError, match=r"no tensor fits .* has conv\.weight, the network has 0"):
        adapted(network(), Adaptation(weights=str(file)))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"pickle")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        adapted(network(), Adaptation(weights=str(broken)))


def test_adapters_train_alone_and_begin_as_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, plain = torch.randn(3, 4), network()
    file = tmp_path / "trained.safetensors"
    save_file(plain.state_dict(), file)
    after = adapted(network(), Adaptation(weights=str(file), lora_rank=2, lora_layers="0, 2"))
    assert trainable(after) == ["0.A", "0.B", "2.A", "2.B"]
    assert torch.equal(after(x), plain(x))
    new_head = nn.Sequential(*network()[:4], nn.Linear(6, 7))
    after = adapted(new_head, Adaptation(weights=str(file), lora_rank=2))
    assert trainable(after) == ["0.A", "0.B", "2.A", "2.B", "4.weight", "4.bias"]


def test_adapters_are_peft_s() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    x, base = torch.randn(3, 4), network()
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["0", "2"], lora_dropout=0.0)
    theirs = peft.get_peft_model(nn.Sequential(*base), config)
    theirs_inside = theirs.base_model.model
    copy = nn.Sequential(*(nn.Linear(m.in_features, m.out_features) if isinstance(m, nn.Linear)
                           else nn.ReLU() for m in network()))  # fmt: skip
    copy.load_state_dict(
        {
            "0.weight": theirs_inside[0].base_layer.weight,
            "0.bias": theirs_inside[0].base_layer.bias,
            "2.weight": theirs_inside[2].base_layer.weight,
            "2.bias": theirs_inside[2].base_layer.bias,
            "4.weight": theirs_inside[4].weight,
            "4.bias": theirs_inside[4].bias,
        }
    )
    ours = adapted(copy, Adaptation(lora_rank=2, lora_alpha=8.0, lora_layers="0, 2"))
    pairs = []
    for place in (0, 2):
        mine, yours = ours.get_submodule(str(place)), theirs_inside[place]
        assert isinstance(mine, Adapted)
        a, b = yours.lora_A["default"].weight, yours.lora_B["default"].weight
        with torch.no_grad():
            b.normal_()
            mine.A.copy_(a)
            mine.B.copy_(b)
        pairs += [(mine.A, a), (mine.B, b)]
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for parameter, reference in pairs:
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, reference.grad, atol=1e-5)
    trained = {name for name, value in theirs.named_parameters() if value.requires_grad}
    assert len(trained) == len(trainable(ours)) == 4


def test_personal_names_are_among_what_is_trained() -> None:
    module = adapted(network(), Adaptation(frozen="0"))
    assert personal_names(module, Adaptation(personal="head")) == ["4.weight", "4.bias"]
    with pytest.raises(ValueError, match='"0" matches no parameter'):
        personal_names(module, Adaptation(personal="0"))


names_of_parts = st.text("ab.", min_size=1, max_size=8)


@given(part=st.text("ab.*", min_size=1, max_size=8), name=names_of_parts)
def test_a_pattern_is_its_regular_expression(part: str, name: str) -> None:
    glob = re.escape(part).replace(r"\*", ".*")
    assert is_inside(part, name) == bool(re.search(rf"(^|\.){glob}(\.|$)", name))


def test_patterns_of_many_stars_end() -> None:
    """The regular expression would take years."""
    for part in ("a*" * 300 + "b", "*" * 1000, "*a" * 2000, ",".join(["*a*"] * 50_000)):
        with suppress(ValueError):
            matching(["a" * 40 + ".weight"] * 20, part)
