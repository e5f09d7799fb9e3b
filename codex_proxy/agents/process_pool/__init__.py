"""The pool of an agent's processes: `plan` decides, `pool` and `group` perform what it has decided."""
