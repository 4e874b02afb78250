"""Child processes that compute for one parent."""

import os
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread


def end_with_parent() -> None:
    """In a child of `multiprocessing`: it ends when its parent has, however that was ended.

    A pool's child otherwise waits for ever for the next task of a parent that was killed.
    """
    parent = parent_process()
    assert parent is not None, "called outside of a child"
    Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
