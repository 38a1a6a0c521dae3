"""Executor `ray`: episodes and the engine in processes of a Ray cluster.

* `executor.py` is in the run's process. It places the others and plays jobs there.
* `rollout_host.py`: *rollout hosts* play and score jobs. They ask the engine host for tokens themselves
  (`host_client.py`, with the messages of both).
* `engine_host.py`: the *engine host* has the engine. `hosted_engine.py` is what the run sees of it;
  `shipping.py`, `weight_files.py` and `direct_weights.py` are how weights get there.
* `trainer_host.py`: with `cluster.updates: at_once` a *trainer host* has the trainer of one set of weights.
  `hosted_trainers.py` is what the run sees of all, `trainer_hosts.py` starts, calls and watches them,
  `trainer_files.py` moves their checkpoints.
* `account.py`: the account has what a run has once.

What all these processes do alike, and who of them is alive, is in `backends/cluster/hosts.py`.
"""
