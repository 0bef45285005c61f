"""Non-inferiority of paired arms with few seeds: the public face of :mod:`thinwire_lab.statistics`.

``noninferiority`` answers one comparison by one of eight methods, ``power`` and ``seeds_needed`` plan a study,
``sensitivity`` reads the same pairs by three averages, ``fixed_sequence``, ``co_primary`` and ``holm`` judge several
data sets, and ``superiority`` may follow a non-inferior result. It stands alone: numpy, scipy and pandas.
docs/noninferiority.md says which method to take and how many seeds a reader needs.
"""

from thinwire_lab.statistics.judgement import NonInferiority, noninferiority
from thinwire_lab.statistics.limits import Method
from thinwire_lab.statistics.multiplicity import co_primary, fixed_sequence, holm, superiority
from thinwire_lab.statistics.power import power, seeds_needed
from thinwire_lab.statistics.sensitivity import sensitivity

__all__ = [
    "Method",
    "NonInferiority",
    "co_primary",
    "fixed_sequence",
    "holm",
    "noninferiority",
    "power",
    "seeds_needed",
    "sensitivity",
    "superiority",
]
