"""Tokens of hubs: shown once, kept as a hash, revoked for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from redrive.app.internals import store_of
from redrive.core.item import NewItem
from redrive.errors import ConfigError, NotFound
from redrive.stores.audit import TOPIC
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore
from redrive.webhooks import HubRefused, Relay
from redrive.webhooks.tokens import TOKEN


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    clock = FakeClock()
    async with Relay(FaultyStore(MemoryStore(clock)), clock=clock, log=False, actor="test") as made:
        await made.endpoints.create(id="shop", via="hub")
        await made.endpoints.create("https://a.example", id="direct")
        yield made


async def refused(relay: Relay, header: str) -> str:
    with pytest.raises(HubRefused) as caught:
        await relay.tokens.check(header)
    assert caught.value.status == 401
    return caught.value.code


async def test_a_token_is_checked_by_its_text(relay: Relay) -> None:
    token, text = await relay.tokens.create("home", ["shop", "shop"])
    assert (token.name, token.scopes, token.revoked_at) == ("home", ("shop",), None)
    assert await relay.tokens.check(f"Bearer {text}") == token
    assert await relay.tokens.check(f" bearer   {text} ") == token
    assert await relay.tokens.list() == (token,)


async def test_the_text_is_not_stored(relay: Relay) -> None:
    token, text = await relay.tokens.create("home")
    secret = text.removeprefix(f"rdh_{token.id}_")
    assert len(secret) >= 43
    (document,) = await store_of(relay.app).documents(TOKEN)
    journal = await store_of(relay.app).journal(TOPIC)
    assert b"webhook_token_create" in journal[-1].body
    assert secret.encode() not in document.body
    assert secret not in repr(token)
    assert secret not in repr(journal)


@pytest.mark.parametrize(("given", "kept"), [(["*", "shop"], ("*",)), (["*"], ("*",))])
async def test_a_token_for_all(relay: Relay, given: list[str], kept: tuple[str, ...]) -> None:
    assert (await relay.tokens.create("home", given))[0].scopes == kept


async def test_what_is_no_token_is_refused(relay: Relay) -> None:
    token, text = await relay.tokens.create("home")
    other, _ = await relay.tokens.create("other")
    secret = text.rpartition(f"{token.id}_")[2]
    for wrong in ("x", "rdh", "rdh__", f"rdh_{token.id}", f"rdh_{token.id}_", text[:-1], f"{text}x", text.upper()):
        assert await refused(relay, f"Bearer {wrong}") == "TOKEN_INVALID"
    assert await refused(relay, f"Bearer rdh_{other.id}_{secret}") == "TOKEN_INVALID"
    assert await refused(relay, f"Bearer x_{token.id}_{secret}") == "TOKEN_INVALID"
    assert await refused(relay, "") == "TOKEN_MISSING"
    assert await refused(relay, f"Basic {text}") == "AUTH_FAILED"


async def test_a_revoked_token_is_refused_and_stays(relay: Relay) -> None:
    token, text = await relay.tokens.create("home")
    revoked = await relay.tokens.revoke(token.id, reason="lost")
    assert await refused(relay, f"Bearer {text}") == "TOKEN_REVOKED"
    assert await relay.tokens.revoke(token.id) == revoked
    assert await relay.tokens.list() == (revoked,)


async def test_two_may_revoke_at_once(relay: Relay) -> None:
    token, text = await relay.tokens.create("home")
    store = store_of(relay.app)
    assert isinstance(store, FaultyStore)
    hold = store.hold("write_documents")
    first = asyncio.create_task(relay.tokens.revoke(token.id))
    await hold.reached.wait()
    await relay.tokens.revoke(token.id)
    hold.release()
    assert (await first).revoked_at is not None
    assert await refused(relay, f"Bearer {text}") == "TOKEN_REVOKED"


async def test_revoking_what_is_not_there(relay: Relay) -> None:
    with pytest.raises(NotFound):
        await relay.tokens.revoke("nothing")


@pytest.mark.parametrize(
    ("name", "endpoints", "field"),
    [("", ["*"], "name"), ("a b", ["*"], "name"), ("a", [], "endpoints"), ("a", "shop", "endpoints")],
)
async def test_bad_tokens(relay: Relay, name: str, endpoints: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await relay.tokens.create(name, endpoints)
    assert caught.value.field == field


async def test_a_token_serves_endpoints_that_hubs_deliver_to(relay: Relay) -> None:
    with pytest.raises(ConfigError) as caught:
        await relay.tokens.create("home", ["direct"])
    assert caught.value.field == "endpoints"
    with pytest.raises(NotFound):
        await relay.tokens.create("home", ["nothing"])


async def test_acts_on_webhooks_are_audited_in_the_write_that_does_them(relay: Relay) -> None:
    """And are one request each, with all that a deletion cancels."""
    store = store_of(relay.app)
    assert isinstance(store, FaultyStore)
    store.fail("append")
    token, _ = await relay.tokens.create("home")
    await relay.tokens.revoke(token.id)
    await relay.endpoints.create("https://b.example", id="b")
    await relay.endpoints.mute("b")
    await store.put([NewItem(one, "webhook:b", b"{}") for one in "xyz"])
    await relay.endpoints.delete("b")
    *_, created, revoked, endpoint, muted, deleted = await relay.app.audit.requests()
    assert (created.act, revoked.act) == ("webhook_token_create", "webhook_token_revoke")
    assert (endpoint.act, muted.act) == ("webhook_endpoint_create", "webhook_endpoint_muted")
    assert (deleted.act, deleted.count, deleted.changed) == ("webhook_endpoint_delete", 3, ("b",))
