"""The ports of a site's workers: each its own, again the same, none lost."""

import socket
from itertools import pairwise

import pytest

from orchestrator.live.ports import PORTS, Ports, free_port
from workers.api.messages import Role
from workers.service.config import WorkerConfig


def worker(name: str, http: int = 0, kv: int = 0) -> WorkerConfig:
    return WorkerConfig(
        name=name,
        site="hami",
        pool="p",
        roles=(Role.MAIN,),
        model="simulated",
        http_port=http,
        kv_port=kv,
    )


def test_each_has_its_own_and_keeps_it() -> None:
    given = Ports()
    first, second = given.give(worker("hami/p/0")), given.give(worker("hami/p/1"))
    assert len({*first, *second}) == 4
    assert all(port in PORTS for port in (*first, *second))
    assert given.give(worker("hami/p/0")) == first
    assert given.give(worker("hami/p/2", 7001, 7002)) == (7001, 7002)


def test_a_port_that_somebody_listens_on_is_not_given_again() -> None:
    given = Ports()
    http, kv = given.give(worker("hami/p/0"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", http))
        taken.listen()
        again = given.give(worker("hami/p/0"))
    assert again[0] != http
    assert again[1] == kv


def test_what_is_taken_back_may_be_given_again() -> None:
    """To so many that there would be no port left if none came back."""
    given, declared = Ports(), [port for port in PORTS if port % 500]
    for number, (http, kv) in enumerate(pairwise(declared)):
        given.give(worker(f"hami/p/{number}", http, kv))
        given.take_back(f"hami/p/{number}")
    for number in range(20):
        given.give(worker(f"hami/q/{number}"))


def test_none_is_left() -> None:
    with pytest.raises(OSError, match="no free port in 20000-31999 on "):
        free_port("127.0.0.1", PORTS)
