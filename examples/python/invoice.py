"""A worker that makes invoices final, each once, as one of many; in Python, through leases.py alone.

It is the example `invoice` (examples/invoice) in another language, and may work beside it.

    python invoice.py              # works off the open invoices in the database of DATABASE_URL
    python invoice.py --prove      # a worker is stopped (SIGSTOP) for longer than its ttl, and then refused

Needs psycopg 3 (`pip install 'psycopg[binary]'`), and the schema leasehold in the database.
"""

import asyncio
import os
import signal
import sys
import time

import psycopg

from leases import Leases, Lost

TTL = 2.0  # how long an invoice waits when the worker dies that is at it
READY = "has rendered its invoice, holding token "
REFUSED = "refused to finalise invoice "


async def work(tenant, render):
    leases = Leases(os.environ["DATABASE_URL"], holder=f"invoice.py:{os.getpid()}")
    try:
        async with await connect() as db:
            while invoices := await open_invoices(db):
                invoice, lease = await take_one(leases, tenant, invoices)
                if lease is None:
                    continue
                async with lease:
                    # Looked at again: it may have been finalised before the lease was granted. From here on
                    # nobody else can, as long as what is written is fenced.
                    if await is_open(db, invoice):
                        await render(invoice, lease)
                        await finalise(db, invoice, lease)
    finally:
        await leases.close()


async def take_one(leases, tenant, invoices):
    """The first invoice that nobody is at, or else the first of all, when it comes free."""
    for invoice in invoices:
        if lease := await leases.acquire(f"{tenant}:invoice:{invoice}", ttl=TTL, wait=0):
            return invoice, lease
    first = invoices[0]
    return first, await leases.acquire(f"{tenant}:invoice:{first}", ttl=TTL, wait=5)


async def finalise(db, invoice, lease):
    """Everything that makes it final, in one transaction that is void if the lease has passed on."""
    try:
        async with db.transaction():
            await lease.fence(db)
            [number] = await one(db, "update numbering set latest = latest + 1 returning latest")
            await db.execute("update invoice set number = %s where id = %s", (number, invoice))
            await db.execute("insert into posting values (%s, %s, %s)", (invoice, number, lease.fencing_token))
    except Lost as lost:
        say(f"{REFUSED}{invoice}: {lost}")
    else:
        say(f"invoice {invoice} is final: number {number}")


async def open_invoices(db):
    cursor = await db.execute("select id from invoice where number is null order by id limit 20")
    return [invoice for [invoice] in await cursor.fetchall()]


async def is_open(db, invoice):
    [is_open] = await one(db, "select number is null from invoice where id = %s", invoice)
    return is_open


async def one(db, statement, *values):
    return await (await db.execute(statement, values)).fetchone()


async def connect():
    return await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True)


async def render(_invoice, _lease):
    await asyncio.sleep(0.025)


def say(line):
    print(line, flush=True)


# From here on: the proof.


async def render_until_told(invoice, lease):
    """Stands where it can be stopped: ready to post, and posting as soon as a line comes in."""
    await render(invoice, lease)
    say(f"{READY}{lease.fencing_token}")
    await asyncio.to_thread(sys.stdin.readline)


async def prove():
    schema = f"invoice_python_{os.getpid()}"
    os.environ["PGOPTIONS"] = f"-c search_path={schema}"
    async with await connect() as db:
        await db.execute(f"create schema {schema}")
        try:
            await prove_client(db, schema)
            await play(db, schema)
        finally:
            await db.execute(f"drop schema {schema} cascade")


async def prove_client(db, tenant):
    """A lease outlives its ttl while it is held, and whoever waits is told, long before a heartbeat."""
    name = f"{tenant}:client"
    ours, theirs = Leases(os.environ["DATABASE_URL"]), Leases(os.environ["DATABASE_URL"])
    try:
        lease = await ours.acquire(name, ttl=1.0)
        await asyncio.sleep(1.5)
        if not lease.is_held():
            sys.exit("a lease was not renewed")
        async with db.transaction():
            await lease.fence(db)
        if await theirs.acquire(name, wait=0.1):
            sys.exit("a lease was granted twice")
        began_at = time.monotonic()
        for waiting in 10 * [theirs, ours]:
            granted = asyncio.create_task(waiting.acquire(name))
            while await one(db, "select leasehold.ahead(%s, null)", name) != (1,):
                await asyncio.sleep(0.005)
            await lease.release()
            lease = await granted
        await lease.release()
        took = time.monotonic() - began_at
        say(f"renewed beyond its ttl; then 20 turns by two clients in {took:.2f} s")
        if took > 5:
            sys.exit("waiters are not told when it is their turn")
    finally:
        await asyncio.gather(ours.close(), theirs.close())


async def play(db, tenant, invoices=12):
    await db.execute(
        f"""
        create table invoice (id bigint primary key, number bigint);
        insert into invoice select generate_series(1, {invoices});
        create table numbering (latest bigint not null);
        insert into numbering values (0);
        create table posting (invoice bigint, number bigint, fence bigint)
        """
    )
    async with Player("sleeper", "--sleeper", tenant) as sleeper:
        stale = int((await sleeper.hear(READY)).removeprefix(READY))
        sleeper.process.send_signal(signal.SIGSTOP)
        say("the sleeper is stopped (SIGSTOP), about to post")
        async with Player("worker 1", tenant) as one_worker, Player("worker 2", tenant) as another:
            await one_worker.end()
            await another.end()
        # Told while it stands still, so that the posting is the first thing it does.
        sleeper.process.stdin.write(b"post\n")
        sleeper.process.send_signal(signal.SIGCONT)
        say("the sleeper goes on (SIGCONT), without looking again")
        await sleeper.hear(REFUSED)
        await sleeper.end()

    found = await one(
        db,
        """select count(*), count(distinct invoice), count(distinct number), max(number),
            count(*) filter (where fence = %s) from posting""",
        stale,
    )
    if found != (invoices, invoices, invoices, invoices, 0):
        sys.exit(f"not each invoice once, with numbers that have no gap: {found}")
    say(f"{invoices} invoices, each posted once, with numbers from 1 to {invoices}")


class Player:
    """This program once more, as a process of its own, which is killed when it is left."""

    def __init__(self, label, *arguments):
        self.label = label
        self.arguments = arguments
        self.lines = asyncio.Queue()

    async def __aenter__(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *self.arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.listening = asyncio.create_task(self.listen())
        return self

    async def listen(self):
        async for line in self.process.stdout:
            line = line.decode().rstrip()
            say(f"  {self.label:<9} {line}")
            self.lines.put_nowait(line)
        self.lines.put_nowait(None)

    async def hear(self, beginning):
        while (line := await asyncio.wait_for(self.lines.get(), 60)) is not None:
            if line.startswith(beginning):
                return line
        sys.exit(f"{self.label} has ended without a line {beginning!r}")

    async def end(self):
        if await asyncio.wait_for(self.process.wait(), 60) != 0:
            sys.exit(f"{self.label} has failed")

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.listening


async def main():
    # Told to end, it is cancelled wherever it awaits: the transaction is rolled back, the lease released.
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    for told in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(told, this.cancel)
    match sys.argv[1:]:
        case ["--prove"]:
            await prove()
        case ["--sleeper", tenant]:
            await work(tenant, render_until_told)
        case [tenant]:
            await work(tenant, render)
        case _:
            await work("default", render)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:  # told to end, which is no failure, but no proof either
        sys.exit("--prove" in sys.argv)
