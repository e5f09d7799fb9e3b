"""The client's tools and output schemas: decides who answers a call, checks answers, and restores the history
(`replay`). No IO.
"""
