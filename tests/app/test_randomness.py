"""The machine's own randomness: ids that are ids, and no two alike in processes that share everything else."""

import time
import uuid

from windlass.system import SystemRandomness


def test_a_fresh_id_is_a_uuid_of_version_7_and_of_now() -> None:
    before = time.time_ns() // 1_000_000
    for _ in range(200):
        raw = SystemRandomness().uuid7()
        found = uuid.UUID(bytes=raw)
        assert (found.version, found.variant) == (7, uuid.RFC_4122)
        assert before <= int.from_bytes(raw[:6]) <= time.time_ns() // 1_000_000


def test_every_random_bit_of_an_id_is_random() -> None:
    ids = [int.from_bytes(SystemRandomness().uuid7()[6:]) for _ in range(200)]
    once, always = 0, (1 << 80) - 1
    for id in ids:
        once |= id
        always &= id
    assert (once ^ always) == (0x0FFF << 64) + (1 << 62) - 1
