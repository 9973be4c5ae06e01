"""Statistics and verdicts on what `read` returns. No figures and no files."""
