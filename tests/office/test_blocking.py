"""The office without `await`: what is not a plain call, and one of each that is."""

from __future__ import annotations

from redrive import Policy, blocking, never


def test_the_office_works_without_a_loop() -> None:
    app = blocking.Redrive("memory:", actor="tester", log=False)

    @app.handler("mail", policy=Policy(backoff=never()))
    def send(n: int) -> None:
        raise ValueError(f"no {n}")

    with app, blocking.Redrive("memory:", log=False) as other:
        ids = app.enqueue_many("mail", [{"n": number} for number in range(3)])
        app.run(until_idle=True)
        office = app.letters
        assert office.tag((each for each in ids), add=(tag for tag in ("vip", "eu"))).changed == tuple(ids)
        assert office.note(ids[0], "seen").changed == (ids[0],)
        assert office.move(ids[0], "slow", reason="x").changed == (ids[0],)
        assert (office.count("tag:vip"), office.payload(ids[1])) == (3, {"n": 1})
        assert [(row.value, row.count) for row in office.facets(by="queue").facets] == [("mail", 2), ("slow", 1)]
        (cause,) = office.causes()
        assert office.cause(cause.cause) == cause
        records = office.export("queue:mail", attempts=True)
        assert sorted(other.letters.import_(records, reason="moving").added) == sorted(ids[1:])
        assert len(list(office.export())) == 3
        assert app.views.save("vips", "tag:vip") == app.views.get("vips")
        app.views.remove("vips")
        assert app.views.list() == ()
        assert app.audit.seal() is not None
        found = app.audit.verify()
        assert (found.sound, found.entries) == (True, len(app.audit.list()))
        assert app.audit.last(1)[0].reason == "tag:vip"
