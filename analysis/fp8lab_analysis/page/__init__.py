"""Sentences, tables and pages of what `judge` computes and `draw` draws."""
