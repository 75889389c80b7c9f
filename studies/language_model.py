"""Train a small transformers language model, to be fine-tuned on new languages.

`python -m studies.language_model FOLDER`: a GPT-NeoX of bytes learns the installation manual in
six languages by a plain loop; presets/language-model.toml takes it from runs/small-neox and adapts
it to four others. A minute on one core.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from coterie.datasets.published.languages import LanguagesOptions, read_languages

LANGUAGES, CONTEXT = "da-en-fr-it-pt-sv", 64
LAYERS, WIDTH, HEADS = 6, 384, 6
STEPS, BATCH, RATE = 800, 16, 1e-3


def main(folder: Path) -> None:
    """Train it, and print the loss on the test parts of the six languages."""
    source = read_languages(Path("data"), LanguagesOptions(LANGUAGES, CONTEXT))
    inputs, targets = torch.from_numpy(source.inputs), torch.from_numpy(source.targets)
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=source.outputs, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, max_position_embeddings=CONTEXT,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    network = GPTNeoXForCausalLM(config)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        logits = network(inputs[rows].long(), use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets[rows].flatten().long())

    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    train, test = torch.from_numpy(source.train), torch.from_numpy(source.test)
    began = time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(train[torch.randint(len(train), (BATCH,))]).backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - began
    with torch.no_grad():
        tested = loss(test[torch.randperm(len(test))[:1000]]).item()
    network.save_pretrained(folder)
    count = sum(value.numel() for value in network.parameters())
    print(f"{folder}: {count:,} parameters, {tested:.3f} nats a byte, {seconds:.0f} CPU seconds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
