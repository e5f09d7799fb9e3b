"""The commands of `codex-proxy` other than the server: doctor, connect, chat, keys, store, usage. Like `cli` and
`app` they may use every layer.
"""
