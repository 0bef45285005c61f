"""What ``interval_coverage`` records: ``step`` is the number of seed pairs, scopes are the methods."""

from thinwire_lab.tables import Metric

METRICS = (
    Metric("coverage", "share", "neither", description="replicates whose upper bound lies above the true mean"),
    Metric("coverage_error", "1", "lower", description="Monte-Carlo standard error of coverage in one run"),
    Metric("power", "share", "higher", description="replicates whose upper bound lies below the limit"),
    Metric("excess", "1", "lower", description="median of the bound less the estimate, in standard deviations"),
    Metric("unbounded", "share", "lower", description="replicates that got no finite bound"),
    Metric("refused", "1", description="1 where the library refuses this method at this number of pairs, else 0"),
)
