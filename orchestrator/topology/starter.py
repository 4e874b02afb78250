"""A topology to start from, commented: every section with what can stand there instead."""

from collections.abc import Iterator, Mapping, Sequence

import orjson


def starter(sites: Sequence[str], *, tls: Mapping[str, str] | None = None) -> str:
    """The text of a file for these sites, all on this machine: the first prefills and relays, the
    others decode; of one site that does it all there are no lines. `tls`: what it says of `ca`,
    `cert` and `key`. Raises ValueError without sites.
    """
    if not sites:
        raise ValueError("a topology needs at least one site")
    first, *others = sites
    return "".join(
        [
            _HEAD,
            _near(first, alone=not others),
            *(_FAR.format(site=site) for site in others),
            _links(first, others),
            _TAIL.format(gateway=others[0] if others else first),
            *(() if tls is None else _tls(tls)),
        ]
    )


def _near(site: str, *, alone: bool) -> str:
    return (_ALONE if alone else _NEAR).format(site=site)


def _links(first: str, others: Sequence[str]) -> str:
    if not others:
        return "links: []\n"
    return _LINKS + "".join(_LINE.format(a=first, b=other) for other in others)


def _tls(tls: Mapping[str, str]) -> Iterator[str]:
    yield "  # Sites then speak TLS 1.3 to each other, and take these certificates only.\n  tls:\n"
    yield from (f"    {key}: {orjson.dumps(path).decode()}\n" for key, path in tls.items())


_HEAD = """\
# A PDD deployment. `pdd validate FILE` names every mistake in it, `pdd serve FILE` starts it,
# `pdd schema -o text` lists every key. Quantities have units: 25ms, 20Gbps, 4000 km, 8GiB, 2.0/h.

# A name from the catalogue, or the path of a Hugging Face model directory.
model: smollm2-135m

# A site is a place whose workers are near each other; a pool is chips of one kind in it. Each
# instance is one worker. Roles: prefill reads prompts, main decodes, relay decodes while the KV of
# a prompt is still on its way to a far main. Roles that are left out are planned.
sites:
"""

_NEAR = """\
  {site}:
    launch: local              # started by `pdd serve` on this machine
    pools:
      # kv_tokens: room for KV; slots: requests at once. engine: simulated needs no model's time.
      compute: {{chip: cpu, roles: [prefill, main], kv_tokens: 32768, slots: 16}}
      relay: {{chip: cpu, roles: [relay], kv_tokens: 32768, slots: 16}}
"""

_ALONE = """\
  {site}:
    launch: local              # started by `pdd serve` on this machine
    pools:
      # kv_tokens: room for KV; slots: requests at once. engine: simulated needs no model's time.
      all: {{chip: cpu, roles: [prefill, main], kv_tokens: 32768, slots: 16}}
"""

_FAR = """\
  {site}:
    launch: local
    pools:
      memory: {{chip: cpu, roles: [main], kv_tokens: 32768, slots: 16}}
"""

_LINKS = """\

# The lines between sites. Give `distance_km: 4000` or `delay: 25ms` (one way). With `emulate: true`
# the line is slowed down to what stands here; a real one is measured instead.
links:
"""

_LINE = """\
  - {{between: [{a}, {b}], delay: 25ms, bandwidth: 10Mbps, jitter: 0.2ms, emulate: true}}
"""

_TAIL = """\

# Where OpenAI clients connect.
gateway: {{site: {gateway}, host: 127.0.0.1, port: 8000}}

# What users should get; `pdd plan` and `pdd replay` count by it.
slo: {{ttft: 10s, tpot: 250ms}}

# route: auto compares local, direct and relay for each request; naming one forces it, where it can
# be had. handoff: auto, catch-up or one-shot. codec: lossless keeps every bit of the KV; lossy does
# not, and tokens are then no longer equal to one engine's own run.
policy: {{route: auto, handoff: auto, codec: lossless}}

# Keys that clients must show: from the environment (api_keys_env) or a file (api_keys_file);
# without any, everybody on this host may ask.
security:
  # api_keys_env: PDD_API_KEYS
  tenants: {{}}
"""
