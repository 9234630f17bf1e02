"""Edits of stored jobs by callers. `transitions` has checked that a job may be edited now."""

from windlass.model.edit import JobEdit
from windlass.store.encoding import pack_annotations
from windlass.store.sqlite.transaction import Transaction

_EDIT = "UPDATE job SET edits = edits + 1, annotations = nullif(?2, x''), updated_at = ?3 WHERE seq = ?1"


def edit(tx: Transaction, seq: int, change: JobEdit) -> None:
    packed = pack_annotations(change.annotations)
    tx.check_room(len(packed))
    tx.run(_EDIT, seq, packed, tx.now)
