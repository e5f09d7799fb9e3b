"""Cassettes: recordings of a real agent's turns, replayed without it. `recorder`, `turn_recorder` and `middleware`
write them; `folder`, `player` and `replay` replay them; `check` and `views` are the commands.
"""
