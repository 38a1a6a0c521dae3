"""What the grid games share: a new one is a file of rules on `BoardGame` (`game.py`), `BoardState` and
`BoardObservation` (`values.py`), with roles on `GameRole` (`agents/games.py`)."""
