"""The division of rows between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.backends.trainers.packing import Row, parts


def shares(rows: Sequence[Row], world: int, packing: bool) -> list[list[int]]:
    """Indices of each rank's rows, about equally many tokens each; the same on every rank.

    With packing, rows that share a prompt stay together, since the prompt is computed once on a rank. A group
    of more tokens than a rank's fair share is divided. The longest groups are dealt first, each to the rank
    with the fewest tokens.
    """
    divided = [parts(row) for row in rows]
    groups: dict[bytes | int, list[int]] = {}
    for index, part in enumerate(divided):
        groups.setdefault(part.prompt.tobytes() if packing else index, []).append(index)

    def tokens(members: Sequence[int]) -> int:
        prompt = len(divided[members[0]].prompt)
        return prompt + sum(len(divided[index].completion) for index in members)

    fair = max(sum(map(tokens, groups.values())) / world, 1)
    pieces: list[list[int]] = []
    for members in groups.values():
        count = min(-(-tokens(members) // int(fair + 1)), len(members))
        pieces += [members[piece::count] for piece in range(count)]
    dealt: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for members in sorted(pieces, key=lambda members: (-tokens(members), members[0])):
        rank = loads.index(min(loads))
        dealt[rank] += members
        loads[rank] += tokens(members)
    return [sorted(indices) for indices in dealt]
