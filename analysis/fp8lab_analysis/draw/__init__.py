"""Figures of what `judge` computes, and the numbers read back from them."""
