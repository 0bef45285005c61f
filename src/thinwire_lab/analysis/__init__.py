"""From run tables to summaries, verdicts, figures and the report. Reads files only and never imports thinwire."""
