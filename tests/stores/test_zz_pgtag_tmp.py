from redrive.core.select import Not
from tests.stores.test_postgres_pages import *
from tests.stores.test_postgres_pages import _looked_at
TAG=[
 "insert into tag select 'rare', g from (values (5),(77)) v(g)",
 "insert into tag select 'half', g from generate_series(1, 60000) g where g % 2 = 0",
 "insert into tag select 'past', g from generate_series(1, 5000) g",
 "update course set ties = 128",
]
S={t: And((DEAD, OPEN, Match("tag","=",t))) for t in ("rare","half","past","nobody")}
S|={t+" alone": Match("tag","=",t) for t in ("rare","half","past","nobody")}
S|={t+" cause": And((DEAD, OPEN, Match("cause","=","c7"), Match("tag","=",t))) for t in ("rare","half","past","nobody")}
S|={"r*": And((DEAD, OPEN, Match("tag","glob","rar*"))), "-half": And((DEAD,OPEN,Not(Match("tag","=","half"))))}

@pytest.mark.parametrize("known", [True, False])
async def test_x(url, store, known):
    tables = ("item", "course", "letter","tag")
    await execute(url, *[f"alter table {table} set (autovacuum_enabled = false)" for table in tables])
    await execute(url, *MADE, *TAG)
    if known:
        await execute(url, *[f"analyze {table}" for table in tables])
    session = await session_of(store)
    import time
    for name, selection in S.items():
        search = await find.search_for(session, selection, 100, None)
        statement = session.sql("get", "whole").replace("{found}", search.statement)
        t=time.perf_counter()
        n=await _looked_at(session, statement, search.values)
        print(known, name, n, round((time.perf_counter()-t)*1000))
