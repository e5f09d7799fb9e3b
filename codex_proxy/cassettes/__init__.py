"""Cassettes: recordings of turns of a real agent, which are replayed without the agent, and checked against today's
code.

`format` has the file, `pieces` its short lines, `content` what of a turn is compared, `scrubbing` what is left out of
files; `recorder`, `tapes` and `middleware` write cassettes; `folder`, `player` and `replay` replay them; `check` and
`views` are the commands.
"""
