"""The pool of an agent's processes: `plan` decides, `pool` and `processes` perform what it has decided."""
