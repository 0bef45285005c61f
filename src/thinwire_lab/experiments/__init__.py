"""One module a study: a typed ``Config`` and ``run(config, record)``."""
