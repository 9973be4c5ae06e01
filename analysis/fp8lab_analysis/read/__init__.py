"""Run files and studies as dataclasses. No statistics."""
