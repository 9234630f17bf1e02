"""What keeps uploaded code apart from the machine and from other tenants.

Tiers: `limits` (bounds, a user and a folder of its own, a clean environment), `confined` (also no new rights, Landlock,
a filter of system calls), `isolated` (also bubblewrap: own processes, own network, hardly any files). A tier is had
in force completely or not at all: a function whose tier this machine lacks is refused.
"""
