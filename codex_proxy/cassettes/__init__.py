"""Cassettes: recordings of a real agent's turns, which are replayed without it. `recorder`, `tapes` and `middleware`
write them, `folder`, `player` and `replay` replay them, `check` and `views` are the commands.
"""
