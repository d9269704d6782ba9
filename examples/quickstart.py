"""Mail fails, becomes a dead letter, and is sent once the cause is gone."""

from redrive import Policy, constant
from redrive.blocking import Redrive

app = Redrive("sqlite:///quickstart.db")
mail_server_is_up = False


@app.handler("emails", policy=Policy(constant("100ms"), max_attempts=3))
def send(to: str) -> str:
    if not mail_server_is_up:
        raise ConnectionError("the mail server does not answer")
    return f"sent to {to}"


with app:
    mail = app.enqueue("emails", {"to": "ann@example.org"})
    app.run(until_idle=True)
    for letter in app.letters.find("queue:emails error:ConnectionError"):
        print(f"dead letter {letter.id[:8]} after {letter.errors} errors")
    mail_server_is_up = True
    app.letters.replay("queue:emails", reason="the mail server is back")
    app.run(until_idle=True)
    print(app.wait(mail))
