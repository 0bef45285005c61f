"""What was fixed before the first run: a protocol's hash, written once, and compared when claims are judged.

A study file may hold a ``protocol``: margin, level, method, data sets, seeds and stop rule. The first run of the study
at a scale writes it with its hash to ``results/{scale}/protocols/STUDY.json``; no later run writes it again. A verdict
under a protocol needs that file, the same hash in the study file of today, and none of the deciding runs finished
before the file was written. To begin anew, with another protocol, take other seeds and remove the file by hand.
"""

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from thinwire_lab.config import Protocol, Scale, Study
from thinwire_lab.plan import Row
from thinwire_lab.tables import write_text


def _terms(protocol: Protocol, scale: Scale) -> dict[str, Any]:
    """The protocol at one scale, as plain values."""
    terms = protocol.model_dump(mode="json")
    return {**terms, "data": terms["data"].get(scale, []), "seeds": sorted(terms["seeds"].get(scale, []))}


def protocol_hash(study: str, protocol: Protocol, scale: Scale) -> str:
    """SHA-256 (64 hexadecimal digits) of the protocol at a scale; order of keys and layout of the file don't matter."""
    text = json.dumps({"study": study, "scale": scale, **_terms(protocol, scale)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _place(results: Path, study: str) -> Path:
    return results / "protocols" / f"{study}.json"


def register(name: str, study: Study, scale: Scale, rows: list[Row], results: Path) -> None:
    """Write the protocol of a study and its hash below ``results``, unless one is written already.

    ``rows`` are the study's planned runs: those that are finished by now are named in the file, because a protocol
    that comes after them doesn't bind them. Does nothing for a study without a protocol.
    """
    path = _place(results, name)
    if study.protocol is None or path.exists():
        return
    finished = [row for row in rows if (results / "runs" / name / row.run / "run.json").is_file()]
    content = {
        "study": name,
        "scale": scale,
        "hash": protocol_hash(name, study.protocol, scale),
        "protocol": _terms(study.protocol, scale),
        "finished_before": {row.run: row.cell for row in finished},
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_text(draft, json.dumps(content, indent=1) + "\n")
    try:
        os.link(draft, path)  # fails where another run was first, whose protocol stands
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def objection(name: str, study: Study, scale: Scale, results: Path, cells: Collection[str]) -> str:
    """Why the runs of ``cells`` are not covered by a protocol that was written before them; empty where they are."""
    assert study.protocol is not None, name
    path = _place(results, name)
    if not path.is_file():
        return "no protocol was written before the first run"
    written = json.loads(path.read_text(encoding="utf-8"))
    if written["hash"] != protocol_hash(name, study.protocol, scale):
        now = _terms(study.protocol, scale)
        changed = sorted(key for key in now if now[key] != written["protocol"].get(key))
        return f"protocol changed: {', '.join(changed) or 'study or scale'}"
    early = sorted(run for run, cell in written["finished_before"].items() if cell in cells)
    if early:
        return f"{len(early)} of the deciding runs were made before the protocol was written, {early[0]} among them"
    return ""
