"""The reward source `coach`: a chat model scores every action from 0 to 10, with a reason.

`source` is the plugin, `prompts` writes what the coach is shown, `answers` reads what it answers, and
`templates/` holds the texts of the prompts.
"""
