"""What is written at the end of every call: counters and heads, places, and what follows from those.

A place that was given back lets lanes in that were parked for want of it; a lane that opens or runs dry may give a
member its turn or take it away.
"""

from windlass.store.sqlite import outcomes, turns
from windlass.store.sqlite.buckets import add_places
from windlass.store.sqlite.parking import let_in
from windlass.store.sqlite.transaction import Transaction


def settle(tx: Transaction) -> None:
    if tx.outcomes:
        outcomes.write(tx)
    if tx.shifts:
        tx.stirred |= tx.shift()
    if tx.places:
        add_places(tx, tx.places)
        for bucket in [bucket for bucket, more in tx.places.items() if more < 0]:
            let_in(tx, bucket)
    if tx.stirred:
        turns.refresh(tx, tx.stirred)
