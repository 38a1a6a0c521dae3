"""What a run will cost, estimated before it starts: work of a step, memory of each part, fit, placement.

`plan.plan` gives all of it as one value, `RunEstimate`, which `coterie plan` prints. It puts together
`cost.count` (generations and tokens, from above), `memory.memory_of` (bytes of every tensor) and
`placement.placement_of` (processes on nodes). `least.py` counts from below, for what a run is refused for.
"""
