"""Data sets and texts of the published experiments: by name through datasets, or from a local folder.

Used at paper scale only. Each name has one place to look without a network, a folder ``NAME`` beside
the downloaded packages (``assets/packages/NAME/``), and one error that says so. Models by name are
``thinwire.pretrained``'s.
"""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from thinwire.tasks import Question, last_boxed
from thinwire_lab.assets.checks import AssetError

ENWIK8_BYTES = 100_000_000
ENWIK8_HELD_OUT = 5_000_000
INSTRUCTIONS = {
    "math": "Reason step by step and put the final answer within \\boxed{}.",
    "gsm8k": "Reason step by step and end with the number that answers the question.",
}


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub: repository, configuration, split, and the fields of question and solution."""

    repository: str
    configuration: str | None
    split: str
    question: str
    solution: str


SETS = {
    "math": HubSet("DigitalLearningGmbH/MATH-lighteval", None, "train", "problem", "solution"),
    "gsm8k": HubSet("openai/gsm8k", "main", "train", "question", "answer"),
    "mbpp": HubSet("google-research-datasets/mbpp", "full", "train", "text", "code"),
}
TINYSTORIES = HubSet("roneneldan/TinyStories", None, "train", "text", "text")


def load_rows(name: str, source: HubSet, place: Path, split: str | None = None) -> Any:
    """Return the rows of a data set: from ``place/NAME/SPLIT*.{parquet,jsonl}`` where there are any, else by name.

    Raises AssetError, which says what to place where, when there is neither.
    """
    import datasets  # noqa: PLC0415  (slow, and needed at paper scale alone)

    split = split or source.split
    folder = place / name
    for kind, suffix in (("parquet", "parquet"), ("json", "jsonl")):
        files = sorted(str(path) for path in folder.glob(f"{split}*.{suffix}"))
        if files:
            return datasets.load_dataset(kind, data_files=files, split="train")
    try:
        return datasets.load_dataset(source.repository, source.configuration, split=split)
    except (OSError, ValueError) as error:
        cause = str(error).strip().splitlines()[0]
        raise AssetError(
            f"data set {name} ({source.repository} on the hub) is not reachable ({cause}); without a network place "
            f"its {split}*.parquet or {split}*.jsonl in {folder}/"
        ) from error


def written_questions(name: str, tokenizer: PreTrainedTokenizerBase, place: Path) -> list[Question]:
    """Return the training questions of ``math`` or ``gsm8k`` as chat prompts, each with its final answer.

    Raises AssetError when the data set is neither here nor reachable, and KeyError for another name.
    """
    source = SETS[name]
    final: dict[str, Callable[[str], str | None]] = {
        "math": last_boxed,
        "gsm8k": lambda solution: solution.rsplit("####", 1)[-1].strip().replace(",", ""),
    }
    questions = []
    for row in load_rows(name, source, place):
        answer = final[name](row[source.solution])
        chat = [{"role": "user", "content": f"{row[source.question]}\n\n{INSTRUCTIONS[name]}"}]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        if answer is not None and isinstance(prompt, str):
            questions.append(Question(name, prompt, answer))
    return questions


def build_enwik8(folder: Path, place: Path) -> None:
    """Write enwik8 as train (90 MB), validation and test (5 MB each) from ``place/enwik8.zip`` or ``place/enwik8``.

    Raises AssetError when neither file is there or it has not 100,000,000 bytes.
    """
    if (place / "enwik8").is_file():
        text = (place / "enwik8").read_bytes()
    elif (place / "enwik8.zip").is_file():
        with zipfile.ZipFile(place / "enwik8.zip") as archive:
            text = archive.read("enwik8")
    else:
        raise AssetError(f"enwik8 is not here; place enwik8.zip from http://mattmahoney.net/dc/enwik8.zip in {place}/")
    if len(text) != ENWIK8_BYTES:
        raise AssetError(f"{place}: enwik8 has {len(text)} bytes where 100,000,000 are right; fetch it again")
    cut = ENWIK8_BYTES - 2 * ENWIK8_HELD_OUT
    (folder / "train.bin").write_bytes(text[:cut])
    (folder / "validation.bin").write_bytes(text[cut : cut + ENWIK8_HELD_OUT])
    (folder / "test.bin").write_bytes(text[cut + ENWIK8_HELD_OUT :])


def build_tinystories(folder: Path, place: Path) -> None:
    """Write TinyStories: its training split as train, its validation split halved into validation and test.

    Raises AssetError when the data set is neither here nor reachable.
    """
    _write(folder / "train.bin", load_rows("tinystories", TINYSTORIES, place))
    held_out = load_rows("tinystories", TINYSTORIES, place, "validation")
    _write(folder / "validation.bin", (row for i, row in enumerate(held_out) if i % 2 == 0))
    _write(folder / "test.bin", (row for i, row in enumerate(held_out) if i % 2 == 1))


def _write(path: Path, rows: Iterator[Any] | Any) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write((row["text"].strip() + "\n\n").encode())
