"""Rules of who is there: reach, delivery, leases. Each broken once."""

from benchmarks.mutants.mutant import Mutant, broken

M = "orchestrator.membership."


def _m(name: str, module: str, *edits: tuple[str, str], exempt: str | None = None) -> Mutant:
    return broken("membership", name, M + module, *edits, exempt=exempt)


MEMBERSHIP = (
    _m(
        "a restart is taken for a reconnection",
        "reach",
        (
            "        if self.incarnation == hello.incarnation:\n",
            "        if self.incarnation is not None:\n",
        ),
    ),
    _m(
        "a restart loses nothing",
        "reach",
        (
            'news: list[News] = [Lost(reason="it restarted")] if self.up else []',
            "news: list[News] = []",
        ),
        exempt="the core itself drops a worker's legs when it comes up again",
    ),
    _m(
        "a worker that refuses is never lost",
        "reach",
        (" or self._refusals >= REFUSALS_TO_LOSE):", "):"),
        exempt="its silence loses it a few seconds later: slower, but no promise",
    ),
    _m(
        "a silent worker is never lost",
        "reach",
        ("if self.up and (silent or late or self._refusals", "if self.up and (self._refusals"),
    ),
    _m(
        "a worker that came back is not said to be",
        "reach",
        ("            return [CameBack()]\n", "            return []\n"),
    ),
    _m(
        "control is tried once",
        "outbox",
        ("if not refused and now + attempt.wait_s <= attempt.give_up_at:", "if False:"),
    ),
    _m(
        "stops are lost with the worker",
        "outbox",
        ("if isinstance(m, Stop)]", "if False]"),
    ),
    _m(
        "starts are kept for a lost worker's next process",
        "outbox",
        (
            "[m for ms in control for m in ms if isinstance(m, Stop)]",
            "[m for ms in control for m in ms]",
        ),
    ),
    _m(
        "a delivered post keeps its place",
        "outbox",
        ("        self._tries[post.path].pop(post.number, None)\n", ""),
    ),
    _m(
        "a post that failed keeps its place",
        "outbox",
        (
            "        del self._tries[post.path][post.number]\n        return post.messages\n",
            "        return post.messages\n",
        ),
    ),
    _m(
        "a lapse drains every site",
        "leases",
        (
            "[Draining(worker=name) for name in lease.workers]",
            "[Draining(worker=n) for each in self._leases.values() for n in each.workers]",
        ),
        exempt="sites that drain for nothing serve fewer, but every request is told so",
    ),
    _m(
        "a lease lapses once and for all",
        "leases",
        (
            "        return [Present(site=site, worker=worker), standing(worker=worker.name)]\n",
            "        return [Present(site=site, worker=worker)]\n",
        ),
        exempt="a site that drains for ever serves nobody, but every request is told so",
    ),
    _m(
        "a lease never lapses",
        "leases",
        ("            if not lease.lapsed and now >= lease.until:\n", "            if False:\n"),
    ),
    _m(
        "a draining worker that comes up is not told of",
        "members",
        ("                draining=member.draining,\n", ""),
    ),
    _m(
        "a lost worker is sent more than stops",
        "members",
        (
            " and (member.hello is not None or isinstance(message, Stop))\n",
            "\n",
        ),
        exempt="the machine has forgotten the worker and sends nothing else",
    ),
    _m(
        "the core is not told that a worker is lost",
        "members",
        (
            "            return [WorkerLost(worker=worker, reason=news.reason)]\n",
            "            return []\n",
        ),
    ),
    _m(
        "the core is not told that a worker came back",
        "members",
        ("        return [Reconnected(worker=worker)]\n", "        return []\n"),
    ),
)
