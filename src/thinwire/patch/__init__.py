"""Exact patches between versions of weights: what changed, as bits, in a frame that can't be misread.

``diff`` two states, ``encode`` the patch against the base, ``decode`` and ``apply`` it elsewhere; ``encode_anchor``
carries a whole state. Every dtype is compared, moved and hashed as bits, and a wrong base or a harmed frame raises
FrameError before anything is written.
"""

from thinwire.patch.bits import State
from thinwire.patch.digest import state_digest
from thinwire.patch.frame import decode, decode_anchor, encode, encode_anchor
from thinwire.patch.patch import FrameError, Patch, apply, diff

__all__ = [
    "FrameError",
    "Patch",
    "State",
    "apply",
    "decode",
    "decode_anchor",
    "diff",
    "encode",
    "encode_anchor",
    "state_digest",
]
