"""Executor `ray`: episodes and the engine in processes of a Ray cluster.

* `executor.py` is in the run's process. It places the other two and plays jobs there.
* `rollout_host.py`: *rollout hosts* play and score jobs. They ask the engine host for tokens themselves
  (`host_client.py`), by the messages of `exchange.py`.
* `engine_host.py`: the *engine host* has the engine. `hosted_engine.py` is what the run sees of it, and
  `shipping.py` how weights get there.
"""
