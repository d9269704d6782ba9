"""A broker goes down and comes back. Every receipt arrives: at once, by a retry, or by a recovery."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from uuid import uuid4

from redrive.receipts import ReceiptClient


class Call(BaseHTTPRequestHandler):
    """A receipt over MCP; each key is taken once."""

    taken: ClassVar[dict[str, str]] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        task = asked["params"]["arguments"]["task_id"]
        self.taken[self.headers["Idempotency-Key"]] = task
        print(f"  broker: {asked['params']['name']} {task}")
        answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": []}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        return


class Broker:
    def __init__(self) -> None:
        self.port = 0

    def up(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Call)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,)).start()

    def down(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def finished(task: str) -> dict[str, str]:
    # A broker gives a new lease each time. The receipt of an old one would be known, and not be sent again.
    return {"lease_id": f"lease-{uuid4()}", "task_id": task, "worker_id": "w1", "status": "complete"}


async def main() -> None:
    broker = Broker()
    broker.up()
    endpoint = f"http://127.0.0.1:{broker.port}"
    async with ReceiptClient(endpoint, "sqlite:///receipts.db", backoff_base=1.0, log=False) as client:
        print("page 1, all is well:", await client.send_receipt(finished("page 1")))

        broker.down()
        second = await client.submit(finished("page 2"))  # durable now; delivered in the background
        third = await client.send_receipt_with_retry(finished("page 3"), max_retries=2, backoff_base=0.1)
        print("page 3, the broker is down:", third)
        print("dead letters:", [dead.receipt.task_id for dead in await client.dead_letters.get_all()])

        broker.up()
        print("page 2, the broker is back:", await client.wait(second))
        recovery = await client.recover()
        print("recovered:", len(recovery.delivered), "dead letters left:", await client.dead_letters.size())
    broker.down()
    print("the broker has:", sorted(Call.taken.values()))


asyncio.run(main())
