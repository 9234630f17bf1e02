"""The Redis and Valkey store: one server or a cluster; every step is one atomic script."""

from windlass.store.redis.store import RedisStore

__all__ = ["RedisStore"]
