"""The Redis and Valkey store: one server or a cluster; every step is one atomic call of a function."""

from windlass.store.redis.store import RedisStore

__all__ = ["RedisStore"]
