"""The commands of `codex-proxy` beside the server: doctor, connect, chat, keys, store, usage. They may use
every layer.
"""
