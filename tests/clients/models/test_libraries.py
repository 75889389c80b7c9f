"""Networks of other libraries: built for any channels and classes, and trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.clients.engine import probe
from coterie.clients.engine.network import Network
from coterie.clients.models.build import build
from coterie.clients.models.options import Adaptation
from coterie.datasets.plugins import PluginError
from coterie.datasets.problem import Problem, Split
from tests.problems import classification


@pytest.mark.parametrize("name", ["torchvision:squeezenet1_1", "timm:test_resnet"])
def test_a_network_for_these_images(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    problem = classification([4], shape=(2, 20, 28))
    module = build(name, None, "classification", (2, 20, 28), 3, Adaptation(frozen="head"))
    network = Network(module)
    probe.try_out(network, problem, name)
    assert module(torch.zeros(2, 2, 20, 28)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet19", 'has no such classifier, did you mean "resnet18"'),
        ("torchvision:fcn_resnet50", "has no such classifier"),  # it downloads a backbone
        ("timm:hf-hub:timm/resnet18.a1_in1k", "timm has no such network"),
        ("timm:hf_hub:resnet18", "timm has no such network"),
        ("timm:local-dir:/dev/zero", "timm has no such network"),
        ("timm:../../resnet18", "timm has no such network"),
        ("transformers:none", "no config.json in none: name a folder"),
    ],
)
def test_what_there_is_not(name: str, message: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    with pytest.raises(PluginError, match=message):
        build(name, None, "classification", (3, 32, 32), 10)


@pytest.mark.slow
def test_a_classifier_from_a_folder(tmp_path: Path) -> None:
    """Images are resized to the side and channels of its pretraining."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=8, patch_size=4, num_labels=3,
    )  # fmt: skip
    reference = transformers.ViTForImageClassification(config).eval()
    reference.save_pretrained(tmp_path)
    problem = classification([4], shape=(1, 4, 4))
    module = build(f"transformers:{tmp_path}", None, "classification", (1, 4, 4), 3).eval()
    probe.try_out(Network(module), problem, "ViT")
    images = torch.rand(2, 1, 4, 4)
    enlarged = images.repeat_interleave(2, -1).repeat_interleave(2, -2).expand(-1, 3, -1, -1)
    assert torch.allclose(module(images), reference(enlarged).logits, atol=1e-6)
    assert not Network(module).alone


def test_a_language_model_from_a_folder(tmp_path: Path) -> None:
    """Adapt GPT-2's linear layers, which transformers stores transposed."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2, attn_pdrop=0.0
    )
    reference = transformers.GPT2LMHeadModel(config)
    reference.save_pretrained(tmp_path)
    name = f"transformers:{tmp_path}"
    module = build(name, None, "language", (6,), 9, Adaptation(lora_rank=2))
    with pytest.raises(PluginError, match="vocabulary has 9 tokens, the data set's 10"):
        build(name, None, "language", (6,), 10)
    with pytest.raises(PluginError, match="it reads at most 8 tokens: lower the data set's"):
        build(name, None, "language", (9,), 9)
    tokens = torch.arange(12).view(2, 6) % 9
    expected = reference.eval()(tokens).logits
    assert torch.allclose(module.eval()(tokens), expected, atol=1e-6)
    trained = [key for key, value in module.named_parameters() if value.requires_grad]
    assert trained
    assert all(key.endswith((".A", ".B")) for key in trained)
    rows = tokens.numpy()
    split = Split((torch.arange(2).numpy(),), (rows,))
    problem = Problem(
        "toy", "language", rows, split, split, split, 9, torch.zeros(1).double().numpy(),
        torch.ones(1).double().numpy(), torch.tensor([2]).numpy(),
    )  # fmt: skip
    probe.try_out(Network(module), problem, name)
