"""Contexts: the processes that run an app's tasks, forked from a zygote that has imported the app once.

The supervisor's side is `pool` (which context gets which job) and `processes` (start, feed, kill). `zygote`, `main` and
`execution` are the other side. `frames` is what they send each other. Only `main` and `execution` run user code.
"""
