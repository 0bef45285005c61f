"""The metrics that each study records, one module a study."""
