"""Calls of remote models: limits, retries, a cache, a budget and secret keys, for backends of any provider.

With `coterie.backends.models` this is the second common library of the backends: any of them may import it,
and it imports none.
"""
