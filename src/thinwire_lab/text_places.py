"""Where a byte text lies below the assets folder."""

from pathlib import Path

PACKAGED = ("enwiki", "stories")
"""Texts of the asset ``texts``; any other text is an asset of its own."""


def text_folder(assets: Path, name: str) -> Path:
    """Return the folder that holds ``train.bin``, ``validation.bin`` and ``test.bin`` of a text."""
    return assets / "texts" / name if name in PACKAGED else assets / name
