"""What each method can't do: the number of pairs below which it can't reach its level, and why.

``n`` differences have ``2**n`` patterns of signs, equally likely when they are symmetric about the truth, and one of
them has every difference on the wrong side.

* A sign-flip test can't have a p value below ``2**-n``.
* A percentile or BCa bound never exceeds the largest difference, so it misses whenever all lie below the truth.
* A basic bound never exceeds twice the mean less the smallest difference. The map ``x - 2 mean(x)`` is a reflection
  (it turns the diagonal round), so for normal differences that bound misses exactly as often: ``2**-n``.
* The crossed bootstrap is the percentile bootstrap of the seeds where segments don't matter.
* Bootstrap-t has no bound where the resamples that draw one value n times reach ``alpha``: each of up to ``n - 1``
  values below the mean does so with probability ``n**-n``.
* Student's t, paired or two-way, needs two pairs.
"""

from typing import Literal, get_args

Method = Literal["paired-t", "two-way-t", "sign-flip", "percentile", "basic", "bca", "bootstrap-t", "crossed"]
METHODS: tuple[Method, ...] = get_args(Method)
TWO_FACTORS: tuple[Method, ...] = ("two-way-t", "crossed")
"""Methods that treat segments as a second factor."""
RESAMPLING: tuple[Method, ...] = ("percentile", "basic", "bca", "bootstrap-t", "crossed")
"""Methods that need a generator at any n; sign-flip needs one beyond its enumeration."""

_WHY: dict[Method, str] = {
    "sign-flip": "its smallest p value is 2^-{n}",
    "percentile": "its bound can't exceed the largest difference, which covers at most {most:.4g}",
    "bca": "its bound can't exceed the largest difference, which covers at most {most:.4g}",
    "basic": "its bound can't exceed twice the mean less the smallest difference, which covers at most {most:.4g} of "
    "normal differences",
    "crossed": "where segments don't matter its bound can't exceed the largest seed's, which covers at most {most:.4g}",
    "bootstrap-t": "up to {lost:.3g} of its resamples draw one value {n} times and have no spread",
}


def smallest_miss(method: Method, n: int) -> float:
    """The least error rate that a method can be asked for with ``n`` pairs; 0 for Student's t from two pairs on."""
    if method in ("paired-t", "two-way-t"):
        return 0.0 if n >= 2 else 1.0
    if method == "bootstrap-t":
        return (n - 1) * float(n) ** -n if n >= 2 else 1.0
    return 2.0**-n


def _reaches(method: Method, n: int, alpha: float) -> bool:
    return smallest_miss(method, n) <= alpha * (1 + 1e-12)


def pairs_needed(method: Method, alpha: float = 0.05) -> int:
    """The smallest number of pairs with which a method can reach a one-sided level of ``1 - alpha``."""
    n = 2
    while not _reaches(method, n, alpha):
        n += 1
    return n


def too_few(method: Method, n: int, alpha: float) -> str:
    """Why a method can't reach its level with ``n`` pairs, in words; empty where it can."""
    if _reaches(method, n, alpha):
        return ""
    why = _WHY[method].format(n=n, most=1 - 2.0**-n, lost=smallest_miss(method, n))
    needed = pairs_needed(method, alpha)
    return f"{method} can't reach a one-sided level of {1 - alpha:g} with {n} pairs ({why}); it needs {needed}"
