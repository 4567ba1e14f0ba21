"""The search: what a decode step's outputs mean for the hypothesis of every live row. NumPy only.

Owns tokens, sums and options of the rows; knows neither sessions nor caches. All rows of a kind are handled by
the same few NumPy calls, whatever their options: options are columns, never loops. What a text gets depends on its
own options and outputs alone, so that it is the same whatever shares the batch.
"""

from dragoman.server.search.decision import Decision
from dragoman.server.search.search import Search

__all__ = ["Decision", "Search"]
