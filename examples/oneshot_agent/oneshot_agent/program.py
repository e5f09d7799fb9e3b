"""The program that is run by default: reads a prompt from stdin until that ends, and prints an answer."""

import sys

prompt = sys.stdin.read()
if not prompt.strip():
    sys.exit("there is no prompt on stdin")
words = len(prompt.split())
print(f"You wrote {words} word{'' if words == 1 else 's'}:")
print(prompt.rstrip("\n"))
