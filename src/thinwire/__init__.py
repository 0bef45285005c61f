"""Training over a thin wire: exact weight patches, low-communication rounds and bounded-horizon local learning.

This package imports nothing by itself; take what is needed from its parts, for example ``from thinwire.patch import
diff``.
"""
