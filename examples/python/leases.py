"""Leases in Python, with psycopg 3 and asyncio, through the SQL functions alone. Meant to be copied.

It keeps to the rules that the README lays down for clients in other languages, under "From psql and
other languages". Work that does not await holds up renewals as well: give it to `asyncio.to_thread`.
"""

import asyncio
import math
import os
import random
import socket
import time
import uuid
from dataclasses import dataclass, field

import psycopg
from psycopg import sql


class Lost(Exception):
    """The lease has ended or passed on: whatever was written under it is rolled back."""


class Leases:
    """Acquires leases, for any number of tasks. One per process is enough.

    It opens one connection for all lease statements, and with the first wait one that listens.
    """

    def __init__(self, url, holder=None):
        self._url = url
        self._holder = holder
        self._client = uuid.uuid4()
        self._lane = None
        self._lane_is_free = asyncio.Lock()
        self._waiters = {}  # by owner token
        self._left = {}  # names by the tickets of those who lately left
        self._is_attended = False
        self._tasks = set()  # everything under way
        self._attendants = set()  # of these, what need not come to its end

    async def acquire(self, name, ttl=30.0, wait=None):
        """Waits for the name and returns the lease; None when `wait` seconds are over.

        A `wait` of 0 asks without standing in line. Without one it goes on for ever, over a restart of the
        database too, once that has answered.
        """
        owner, waiter = uuid.uuid4(), None
        if wait != 0:
            waiter = self._waiters[owner] = Waiter(name)
            self._attend_waiters()
        began_at = time.monotonic()
        answer_by = began_at + ANSWER_WITHIN
        deadline = math.inf if wait is None else began_at + wait if wait else answer_by
        lease, is_in_doubt = None, False
        try:
            while lease is None:
                if waiter:
                    waiter.told.clear()  # what it was told before it asks is done with
                # The time before it is sent counts, or a slow answer would lengthen the trust in it.
                sent_at = time.monotonic()
                is_in_doubt = True
                try:
                    [(outcome, token, expires_in, ahead, ticket)] = await self.send(
                        ACQUIRE,
                        name=name,
                        owner=owner,
                        ttl=ttl,
                        holder=self._holder,
                        client=self._client if waiter else None,
                    )
                except psycopg.OperationalError:
                    # Perhaps it was granted all the same. The same owner token gets the same answer.
                    if time.monotonic() >= min(deadline, answer_by):
                        raise
                    await asyncio.sleep(random.uniform(0, 0.5))
                    continue
                is_in_doubt, answer_by = False, math.inf
                is_new_in_line = waiter and waiter.ticket != ticket
                if waiter:
                    waiter.ticket = ticket
                if outcome == "granted":
                    lease = Lease(self, name, owner, token, ttl, sent_at + expires_in)
                elif not waiter and outcome != "busy":
                    return None
                elif time.monotonic() >= deadline:
                    return None
                elif outcome in ("busy", "pinned"):  # what keeps it taken ends without telling anybody
                    await asyncio.sleep(random.uniform(0, 0.05))
                elif not is_new_in_line:  # or it asks once more: what happened before, nobody tells it
                    # The first in line looks after the present holder, who may be dead.
                    asks_at = time.monotonic() + expires_in if ahead == 0 and expires_in else math.inf
                    await waiter.sleep(min(asks_at, deadline))
            return lease
        finally:
            self._waiters.pop(owner, None)
            if lease is None and (is_in_doubt or waiter and waiter.ticket):
                self._in_background(self._give_up(owner, name, waiter))

    async def close(self):
        """Ends what is under way. Leases that were not released run out."""
        for attendant in list(self._attendants):
            attendant.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._lane:
            await self._lane.close()

    async def _give_up(self, owner, name, waiter):
        """Takes back whatever an acquisition has left behind, a grant that nobody heard of included."""
        if waiter and waiter.ticket:
            self._left[waiter.ticket] = name
            asyncio.get_running_loop().call_later(60, self._left.pop, waiter.ticket, None)
        try:
            await self.send(LEAVE, owner=owner)
            await self.send(RELEASE, name=name, owner=owner)
        except psycopg.OperationalError:
            pass  # a grant runs out, and a place in line is passed over without heartbeats

    def _attend_waiters(self):
        """Starts what wakes waiters: an ear for notifications, and a heartbeat for what they do not tell."""
        if not self._is_attended:
            self._is_attended = True
            self.attend(self._listen())
            self.attend(self._beat())

    async def _listen(self):
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as ear:
                    cursor = await ear.execute("select leasehold.channel(%s)", (self._client,))
                    [channel] = await cursor.fetchone()
                    await ear.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                    for waiter in self._waiters.values():
                        waiter.told.set()  # what was told before it listened, nobody has heard
                    async for notification in ear.notifies():
                        self._hear(notification.payload)
            except psycopg.OperationalError:
                await asyncio.sleep(1)  # the heartbeat wakes meanwhile

    def _hear(self, payload):
        if not payload.isdecimal():
            return
        ticket = int(payload)
        for waiter in self._waiters.values():
            if waiter.ticket == ticket:
                waiter.told.set()
        if name := self._left.get(ticket):  # told too late: it was meant for whoever is next now
            self._in_background(self.send(WAKE, name=name))

    async def _beat(self):
        while True:
            await asyncio.sleep(1)
            if not self._waiters:
                continue
            try:
                beats = await self.send(HEARTBEAT, client=self._client, owners=list(self._waiters))
            except psycopg.OperationalError:
                continue
            for owner, outcome in beats:
                if owner in self._waiters and outcome in ("try", "unknown"):
                    self._waiters[owner].told.set()

    async def send(self, statement, **values):
        """One statement, a transaction of its own. Once sent it is not cancelled, though nobody awaits it any more."""
        return await asyncio.shield(self._in_background(self._on_lane(statement, values)))

    async def _on_lane(self, statement, values):
        async with self._lane_is_free:
            if self._lane is None or self._lane.closed:
                self._lane = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5)
                await self._lane.execute(SETTINGS)
            # A server that is gone without a word costs the connection, not its user an endless wait.
            hanging_up = asyncio.get_running_loop().call_later(HANG_UP_AFTER, hang_up, self._lane)
            try:
                cursor = await self._lane.execute(statement, values)
                return await cursor.fetchall()
            finally:
                hanging_up.cancel()

    def attend(self, work):
        """Runs something that ends with this client at the latest."""
        task = self._in_background(work)
        self._attendants.add(task)
        task.add_done_callback(self._attendants.discard)
        return task

    def _in_background(self, work):
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task):
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # for whoever awaits it, if anybody does


def hang_up(connection):
    """Ends the connection and cancels nothing: what became of the statement is unknown."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


@dataclass
class Waiter:
    name: str
    ticket: int | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, until):
        try:
            seconds = None if until == math.inf else max(0, until - time.monotonic())
            await asyncio.wait_for(self.told.wait(), seconds)
        except asyncio.TimeoutError:
            pass


class Lease:
    """A held lease, renewed in the background until it is released: `async with lease: …`."""

    def __init__(self, leases, name, owner, token, ttl, expires_at):
        self.name = name
        self.fencing_token = token
        self._leases = leases
        self._owner = owner
        self._ttl = ttl
        self._margin = min(ttl / 10, 1)
        self._trusted_until = expires_at - self._margin
        self._keeper = leases.attend(self._keep())

    def is_held(self):
        """Whether this process may still act on the lease. Only the fence is proof against being stopped."""
        return time.monotonic() < self._trusted_until

    async def fence(self, connection):
        """Makes the rest of the connection's transaction conditional on the lease. Call it first.

        It asks whether exactly this grant is current, whatever is believed here; if not it raises Lost.
        """
        try:
            await connection.execute(
                "select leasehold.fence(%s, %s, %s)", (self.name, self.fencing_token, self._owner)
            )
        except psycopg.Error as error:
            if error.sqlstate == "LH001":
                raise Lost(str(error).splitlines()[0]) from error
            raise

    async def release(self):
        self._keeper.cancel()
        self._trusted_until = -math.inf  # before it is sent
        try:
            while await self._leases.send(RELEASE, name=self.name, owner=self._owner) == [("busy",)]:
                await asyncio.sleep(random.uniform(0, 0.05))
        except psycopg.OperationalError:
            pass  # it runs out

    async def _keep(self):
        renews_in = self._ttl / 3
        while True:
            await asyncio.sleep(renews_in)
            sent_at = time.monotonic()
            if sent_at >= self._trusted_until:
                return  # lost; renewed now, it might be another's already
            try:
                [(outcome, expires_in)] = await self._leases.send(
                    RENEW, name=self.name, owner=self._owner, ttl=self._ttl
                )
            except psycopg.OperationalError:
                outcome = "busy"
            if outcome == "renewed" and self.is_held():
                self._trusted_until = sent_at + expires_in - self._margin
                renews_in = max(0, sent_at + self._ttl / 3 - time.monotonic())
            elif outcome == "busy":
                renews_in = random.uniform(0, self._ttl / 20)
            else:
                self._trusted_until = -math.inf
                return

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.release()


# The one thing that acquire may wait for is another session that inserts the same new name.
SETTINGS = "set lock_timeout = '100ms'; set default_transaction_isolation = 'read committed'"

ACQUIRE = """
    select a.outcome, a.fencing_token, extract(epoch from a.expires_in)::float8, a.ahead, leasehold.ticket(%(owner)s)
    from leasehold.acquire(
        %(name)s, %(owner)s, make_interval(secs => %(ttl)s), %(holder)s, %(client)s, '3 seconds') as a"""

RENEW = """
    select r.outcome, extract(epoch from r.expires_in)::float8
    from leasehold.renew(array[%(name)s], array[%(owner)s], array[make_interval(secs => %(ttl)s)]) as r"""

RELEASE = "select leasehold.release(%(name)s, %(owner)s)"

HEARTBEAT = "select h.owner, h.outcome from leasehold.heartbeat(%(client)s, '3 seconds', %(owners)s) as h"

LEAVE = "select leasehold.leave(%(owner)s)"

WAKE = "select leasehold.wake(%(name)s)"

ANSWER_WITHIN = 5  # the first answer to an acquisition, however often it takes to ask
HANG_UP_AFTER = 2
