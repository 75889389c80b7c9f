"""The directory that this code lies in: the checkout, or the copy of it that Flower ships."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
