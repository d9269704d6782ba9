"""R17 with workers: their link is in trouble again and again while they work, and nobody starts them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.links.link import Link
from tests.support.links.sizes import Rides
from tests.support.links.trial import HARMLESS, TROUBLES
from tests.support.links.works import SOME, Setting, at_work, spend
from tests.support.rig.survey import Survey
from tests.support.rig.verdict import Verdict


@dataclass
class Report:
    """`recoveries`: each trouble, and the seconds from its end to the next work."""

    recoveries: list[tuple[str, float]] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    survey: Survey = field(default_factory=Survey)

    def __str__(self) -> str:
        recoveries = ", ".join(f"{seconds:.2f} s after {name}" for name, seconds in self.recoveries)
        return f"{self.verdict.report()}\nwork again {recoveries}"


async def ride(link: Link, setting: Setting, size: Rides, troubles: Sequence[str]) -> Report:
    report = Report()
    async with at_work(setting) as works:
        async with works.clients():
            for name in [*troubles] * size.rounds:
                await works.progress(SOME, limit=size.limit, what=f"work before {name}")
                TROUBLES[name](link)
                if name in HARMLESS:
                    await works.progress(SOME, limit=size.limit, what=f"work in spite of {name}")
                else:
                    await spend(size.spell)
                link.heal()
                seconds = await works.progress(SOME, limit=size.limit, what=f"work after {name}")
                report.recoveries.append((name, seconds))
        await works.drained()
        report.verdict, report.survey = await works.verdict()
    return report
