"""What the simulator can step around: gaps that the core had once, each with what the runs then leave out.

The flags are off, so the runs cover them. Set to True, a flag narrows the runs, to look for something else on an older
core.
"""

from __future__ import annotations

KNOWN_PARKED_GROUPS = False
"""Parked messages of a group are taken up by sequence alone, not by priority; and when the one that was taken up leaves
without having been delivered (it expires, or is purged, moved or trimmed) the rest stays parked. So groups are used
without priorities, expiry, limits, policies and without an operator's hand in the queue."""

KNOWN_KEY_HASH_PLACES = False
"""What waits for its owner in a key-hash queue goes by sequence, not by priority, and is not held against max_attempts
again; where only claims wait, what one of them cannot take is kept for it. So such queues are not ordered, nobody waits
for a claim on them, and no policy changes attempts where there are some."""

KNOWN_LETTERS_COME_BACK = False
"""While a message dies, its entry still stands in its line and its bytes still count. A dead letter that comes back
to the queue in the same step, because another queue dropped its head, finds it there. So queues that drop their head
have only their own dead-letter queue as a target, and policies change neither limits nor targets."""

KNOWN_MOVE_BY_LIST = False
"""move and redrive work through a list made beforehand and do not look whether a message is still waiting. So they come
only right after a flush, and not in queues that drop their head."""

KNOWN_TRANSACTION_REPEATS = False
"""A transaction does not check the second publish of a dedup key, also when the first one reaches no queue, so that the
second is published. So transactions do not use a key twice."""
