"""Keys, tenants and rates, without a server."""

import pytest

from orchestrator.errors import UserError
from orchestrator.live.openai.border.door import (
    DEFAULT_TENANT,
    RATE_HEADERS,
    Bucket,
    Door,
    Rates,
    Tenant,
)
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.openai.border.visit import read_trace
from orchestrator.topology.schema import Security

VARIABLE = "PDD_TEST_KEYS"


def test_a_bucket_is_full_at_first_and_fills_evenly():
    bucket = Bucket(60)
    bucket.use(60, 100.0)
    assert bucket.wait_s(1, 100.0) == 1.0
    assert bucket.wait_s(1, 100.5) == pytest.approx(0.5)
    assert bucket.wait_s(1, 101.0) == 0.0
    bucket.use(-1000, 101.0)
    assert bucket.wait_s(61, 101.0) == 1.0, "no more than a minute's is ever kept"


def test_requests_are_counted_and_the_refused_ones_are_not():
    tenant = Tenant("t", Rates(requests_per_minute=2))
    assert [tenant.admit(0.0), tenant.admit(0.0)] == [None, None]
    for _ in range(5):
        refused = tenant.admit(0.0)
        assert refused is not None
        assert (refused.of, refused.per_minute, refused.wait_s) == ("requests", 2, 30.0)
    assert tenant.admit(30.0) is None


def test_a_long_answer_is_told_and_waited_for_afterwards():
    tenant = Tenant("t", Rates(tokens_per_minute=60))
    assert tenant.admit(0.0) is None
    tenant.charge(180, 0.0)
    refused = tenant.admit(60.0)
    assert refused is not None
    assert (refused.of, refused.wait_s) == ("tokens", 61.0)
    assert tenant.admit(121.0) is None


def test_what_is_left_is_told_in_openais_words():
    tenant = Tenant("t", Rates(requests_per_minute=10, tokens_per_minute=60))
    tenant.admit(0.0)
    tenant.charge(180, 0.0)
    told = dict(tenant.headers(0.25))
    assert told == {
        b"x-ratelimit-limit-requests": b"10",
        b"x-ratelimit-remaining-requests": b"9",
        b"x-ratelimit-reset-requests": b"6s",
        b"x-ratelimit-limit-tokens": b"60",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"3m0s",
    }
    assert dict(tenant.headers(5.5))[b"x-ratelimit-reset-requests"] == b"500ms"
    assert set(RATE_HEADERS) == {name.decode() for name in told}
    assert Tenant("free", Rates()).headers(0.0) == []


def test_tenants_have_rates_of_their_own_over_all_their_keys():
    rates = {"acme": Rates(requests_per_minute=1)}
    door = Door({"a1": "acme", "a2": "acme", "b": "beta"}, rates)
    first, second, other = (door.tenant(b"Bearer " + key) for key in (b"a1", b"a2", b"b"))
    assert first is second
    assert (first.name, other.name) == ("acme", "beta")
    assert first.admit(0.0) is None
    assert second.admit(0.0) is not None
    assert [other.admit(0.0) for _ in range(9)] == [None] * 9


def test_without_keys_everybody_is_the_default_tenant():
    door = Door(rates={DEFAULT_TENANT: Rates(requests_per_minute=1)})
    tenant = door.tenant(b"")
    assert tenant is door.tenant(b"Bearer whatever")
    assert tenant.admit(0.0) is None
    assert tenant.admit(0.0) is not None


def test_keys_come_from_the_environment_and_from_a_file(monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nacme:from-file\n\nx:y\n")
    monkeypatch.setenv(VARIABLE, " plain, acme:from-env ,,")
    door = read_door(
        Security(
            api_keys_env=VARIABLE,
            api_keys_file=str(file),
            tenants={"acme": {"requests_per_minute": 5}},
        )
    )
    names = {"from-file": "acme", "from-env": "acme", "plain": "default", "x:y": "default"}
    for key, name in names.items():
        assert door.tenant(f"bearer {key}".encode()).name == name
    for wrong in ("acme:from-file", "x", "y", "", "#"):
        assert door.tenant(f"Bearer {wrong}".encode()) is None


@pytest.mark.parametrize(
    ("security", "message"),
    [
        ({"api_keys_env": VARIABLE}, r"^security\.api_keys_env: PDD_TEST_KEYS is empty"),
        ({"api_keys_file": "nowhere"}, r"^security\.api_keys_file: nowhere: No such file"),
        ({"tenants": {"acme": {}}}, r"^security\.tenants\.acme: no key is this tenant's"),
    ],
)
def test_what_the_file_gets_wrong_is_named(monkeypatch, tmp_path, security, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, " , ")
    with pytest.raises(UserError, match=message):
        read_door(Security.model_validate(security))


def test_a_file_of_comments_holds_no_key(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# none\n")
    with pytest.raises(UserError, match="holds no key"):
        read_door(Security(api_keys_file=str(file)))


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-brings", True),
        (f"00-{TRACE}-{PARENT}-01-more", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{PARENT}", False),
        ("", False),
    ],
)
def test_a_traceparent_is_taken_if_it_is_valid(given, valid):
    assert read_trace(given.encode()) == (given if valid else None)


def test_who_may_operate(monkeypatch):
    assert Door().operates(b""), "who asks for no key has nobody to keep out"
    assert not Door({"k": "default"}).operates(b"Bearer k"), "a client's key is not enough"
    monkeypatch.setenv(VARIABLE, "op1, op2")
    door = read_door(Security(operator_keys_env=VARIABLE))
    assert door.tenant(b"").name == DEFAULT_TENANT, "clients need none"
    assert [door.operates(key) for key in (b"Bearer op2", b"bearer op1")] == [True, True]
    for wrong in (b"", b"Bearer ", b"Bearer op", b"op1", b"Basic op1"):
        assert not door.operates(wrong)
    monkeypatch.setenv("PDD_TEST_CLIENTS", "k")
    door = read_door(Security(operator_keys_env=VARIABLE, api_keys_env="PDD_TEST_CLIENTS"))
    assert (door.operates(b"Bearer op1"), door.operates(b"Bearer k")) == (True, False)
    assert [door.tenant(key).name for key in (b"Bearer op1", b"Bearer k")] == [DEFAULT_TENANT] * 2
    monkeypatch.setenv(VARIABLE, " ")
    with pytest.raises(UserError, match=r"^security\.operator_keys_env: PDD_TEST_KEYS is empty"):
        read_door(Security(operator_keys_env=VARIABLE))
