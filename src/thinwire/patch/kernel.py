"""Compiled loops: numba kernels that release the GIL and are compiled once a machine."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def kernel(loop: Loop) -> Loop:
    """Compile ``loop`` for each set of argument types that it meets.

    The machine code is kept beside its module or in the user's cache; where neither can be written, only in memory.
    """
    try:
        return cast(Loop, njit(nogil=True, cache=True)(loop))
    except RuntimeError:  # numba finds no folder that it may write to
        return cast(Loop, njit(nogil=True)(loop))
