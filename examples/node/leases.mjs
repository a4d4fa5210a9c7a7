// Leases in JavaScript, on Node with pg, through the SQL functions alone. Meant to be copied.
//
// It keeps to the rules that the README lays down for clients in other languages, under "From psql and
// other languages". Work that does not await holds up renewals as well.

import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import pg from 'pg'

/** The lease has ended or passed on: whatever was written under it is rolled back. */
export class Lost extends Error {}

/**
 * Acquires leases, any number at a time. One per process is enough.
 *
 * It opens one connection for all lease statements, and with the first wait one that listens.
 */
export class Leases {
  #url
  #holder
  #client = randomUUID()
  #lane
  #last = Promise.resolve() // the last statement that was sent, answered or not
  #ear
  #waiters = new Map() // by owner token
  #left = new Map() // names by the tickets of those who lately left
  #isAttended = false
  #isClosed = false

  constructor(url, holder = null) {
    this.#url = url
    this.#holder = holder
  }

  /**
   * Waits for the name and returns the lease; undefined when `wait` seconds are over.
   *
   * A `wait` of 0 asks without standing in line. Without one it goes on for ever, over a restart of the
   * database too, once that has answered.
   */
  async acquire(name, { ttl = 30, wait = Infinity } = {}) {
    const owner = randomUUID()
    const waiter = wait > 0 ? new Waiter() : undefined
    if (waiter) {
      this.#waiters.set(owner, waiter)
      this.#attend()
    }
    const beganAt = now()
    let answerBy = beganAt + ANSWER_WITHIN
    const deadline = waiter ? beganAt + wait : answerBy
    let lease
    let isInDoubt = false
    try {
      while (true) {
        if (waiter) waiter.isTold = false // what it was told before it asks is done with
        // The time before it is sent counts, or a slow answer would lengthen the trust in it.
        const sentAt = now()
        isInDoubt = true
        let answer
        try {
          const client = waiter ? this.#client : null
          ;[answer] = await this.send(ACQUIRE, [name, owner, ttl, this.#holder, client])
        } catch (error) {
          // Perhaps it was granted all the same. The same owner token gets the same answer.
          if (!mayPass(error) || now() >= Math.min(deadline, answerBy)) throw error
          await pause(Math.random() * 500)
          continue
        }
        isInDoubt = false
        answerBy = Infinity
        const isNewInLine = waiter && waiter.ticket !== answer.ticket
        if (waiter) waiter.ticket = answer.ticket
        if (answer.outcome === 'granted') {
          lease = new Lease(this, name, owner, answer.fencing_token, ttl, sentAt + answer.expires_in)
          return lease
        }
        if (!waiter && answer.outcome !== 'busy') return undefined
        if (now() >= deadline) return undefined
        if (answer.outcome === 'busy' || answer.outcome === 'pinned') {
          await pause(Math.random() * 50) // what keeps it taken ends without telling anybody
        } else if (!isNewInLine) {
          // Or it asks once more: what happened before, nobody tells it. The first in line looks after the
          // present holder, who may be dead.
          const asksAt = answer.ahead === 0 && answer.expires_in ? now() + answer.expires_in : Infinity
          await waiter.sleep(Math.min(asksAt, deadline) - now())
        }
      }
    } finally {
      this.#waiters.delete(owner)
      if (!lease && (isInDoubt || waiter?.ticket)) this.#giveUp(owner, name, waiter?.ticket)
    }
  }

  /** Ends its connections. Leases that were not released run out. */
  async close() {
    this.#isClosed = true
    await this.#ear?.end()
    await this.#last
    await this.#lane?.end()
  }

  /** Takes back whatever an acquisition has left behind, a grant that nobody heard of included. */
  #giveUp(owner, name, ticket) {
    if (ticket) {
      this.#left.set(ticket, name)
      setTimeout(() => this.#left.delete(ticket), 60_000).unref()
    }
    // What fails here ends by itself: a grant runs out, a place in line is passed over without heartbeats.
    this.send('select leasehold.leave($1)', [owner]).catch(() => {})
    this.send(RELEASE, [name, owner]).catch(() => {})
  }

  /** Starts what wakes waiters: an ear for notifications, and a heartbeat for what they do not tell. */
  #attend() {
    if (this.#isAttended) return
    this.#isAttended = true
    this.#listen()
    this.#beat()
  }

  async #listen() {
    const ear = new pg.Client({ connectionString: this.#url, keepAlive: true })
    ear.on('notification', ({ payload }) => this.#hear(payload))
    ear.on('error', () => {}) // the end follows
    ear.once('end', () => {
      // The heartbeat wakes meanwhile.
      if (!this.#isClosed) setTimeout(() => this.#listen(), 1000)
    })
    this.#ear = ear
    try {
      await ear.connect()
      const { rows } = await ear.query('select leasehold.channel($1)', [this.#client])
      await ear.query(`listen ${ear.escapeIdentifier(rows[0].channel)}`)
      // What was told before it listened, nobody has heard.
      for (const waiter of this.#waiters.values()) waiter.tell()
    } catch {
      ear.end().catch(() => {})
    }
  }

  #hear(ticket) {
    for (const waiter of this.#waiters.values()) {
      if (waiter.ticket === ticket) waiter.tell()
    }
    // Told too late: it was meant for whoever is next now.
    const name = this.#left.get(ticket)
    if (name) this.send('select leasehold.wake($1)', [name]).catch(() => {})
  }

  async #beat() {
    while (!this.#isClosed) {
      await pause(1000, undefined, { ref: false })
      if (this.#isClosed || this.#waiters.size === 0) continue
      // One that fails is followed by the next.
      const beats = await this.send(HEARTBEAT, [this.#client, [...this.#waiters.keys()]]).catch(() => [])
      for (const { owner, outcome } of beats) {
        if (outcome === 'try' || outcome === 'unknown') this.#waiters.get(owner)?.tell()
      }
    }
  }

  /** One statement after the other, each a transaction of its own. Nothing cancels one that is sent. */
  send(statement, values) {
    const answer = this.#last.then(() => this.#onLane(statement, values))
    this.#last = answer.catch(() => {})
    return answer
  }

  async #onLane(statement, values) {
    this.#lane ??= await this.#open()
    const lane = this.#lane
    try {
      return (await lane.query(statement, values)).rows
    } catch (error) {
      // No answer, or none in time: the connection is given up, and what became of the statement is unknown.
      if (error.severity === undefined) {
        this.#lane = undefined
        lane.end().catch(() => {})
      }
      throw error
    }
  }

  async #open() {
    const lane = new pg.Client({
      connectionString: this.#url,
      keepAlive: true,
      connectionTimeoutMillis: 5000,
      query_timeout: HANG_UP_AFTER * 1000, // of the wait alone: the server is told nothing of it
    })
    lane.on('error', () => {
      if (this.#lane === lane) this.#lane = undefined
    })
    await lane.connect()
    await lane.query(SETTINGS)
    return lane
  }
}

class Waiter {
  ticket
  isTold = false
  #wake = () => {}

  tell() {
    this.isTold = true
    this.#wake()
  }

  async sleep(seconds) {
    if (this.isTold) return
    await new Promise((resolve) => {
      const timer = seconds < Infinity ? setTimeout(resolve, Math.max(0, seconds * 1000)) : undefined
      this.#wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }
}

/** A held lease, renewed in the background until it is released. */
class Lease {
  name
  /** A string, as pg gives a bigint. It goes back into SQL as it came. */
  fencingToken
  #leases
  #owner
  #ttl
  #margin
  #trustedUntil
  #timer

  constructor(leases, name, owner, fencingToken, ttl, expiresAt) {
    this.name = name
    this.fencingToken = fencingToken
    this.#leases = leases
    this.#owner = owner
    this.#ttl = ttl
    this.#margin = Math.min(ttl / 10, 1)
    this.#trustedUntil = expiresAt - this.#margin
    this.#renewIn(ttl / 3)
  }

  /** Whether this process may still act on the lease. Only the fence is proof against being stopped. */
  isHeld() {
    return now() < this.#trustedUntil
  }

  /**
   * Makes the rest of the client's transaction conditional on the lease. Call it first.
   *
   * It asks whether exactly this grant is current, whatever is believed here; if not it throws Lost.
   */
  async fence(client) {
    try {
      await client.query('select leasehold.fence($1, $2, $3)', [this.name, this.fencingToken, this.#owner])
    } catch (error) {
      throw error.code === 'LH001' ? new Lost(error.message, { cause: error }) : error
    }
  }

  async release() {
    clearTimeout(this.#timer)
    this.#trustedUntil = -Infinity // before it is sent
    try {
      while ((await this.#leases.send(RELEASE, [this.name, this.#owner]))[0].release === 'busy') {
        await pause(Math.random() * 50)
      }
    } catch (error) {
      if (!mayPass(error)) throw error // else it runs out
    }
  }

  #renewIn(seconds) {
    this.#timer = setTimeout(() => this.#renew(), seconds * 1000)
  }

  async #renew() {
    const sentAt = now()
    if (!this.isHeld()) return // lost; by now it may be another's
    let outcome = 'busy'
    let expiresIn
    try {
      ;[{ outcome, expires_in: expiresIn }] = await this.#leases.send(RENEW, [this.name, this.#owner, this.#ttl])
    } catch (error) {
      if (!mayPass(error)) outcome = 'refused'
    }
    if (outcome === 'renewed' && this.isHeld()) {
      this.#trustedUntil = sentAt + expiresIn - this.#margin
      this.#renewIn(Math.max(0, sentAt + this.#ttl / 3 - now()))
    } else if (outcome === 'busy' && this.isHeld()) {
      this.#renewIn(Math.random() * (this.#ttl / 20))
    } else {
      this.#trustedUntil = -Infinity
    }
  }
}

/** Seconds by a clock that nobody sets. */
const now = () => performance.now() / 1000

/** Whether the connection failed, or the server is going or coming; anything else it would say again. */
const mayPass = (error) => error.severity === undefined || /^(08|53|57P)/.test(error.code)

const ANSWER_WITHIN = 5 // the first answer to an acquisition, however often it takes to ask
const HANG_UP_AFTER = 2

// The one thing that acquire may wait for is another session that inserts the same new name.
const SETTINGS = "set lock_timeout = '100ms'; set default_transaction_isolation = 'read committed'"

const ACQUIRE = `
  select a.outcome, a.fencing_token, extract(epoch from a.expires_in)::float8 as expires_in, a.ahead,
    leasehold.ticket($2) as ticket
  from leasehold.acquire($1, $2, make_interval(secs => $3), $4, $5, '3 seconds') as a`

const RENEW = `
  select r.outcome, extract(epoch from r.expires_in)::float8 as expires_in
  from leasehold.renew(array[$1]::text[], array[$2]::uuid[], array[make_interval(secs => $3)]) as r`

const RELEASE = 'select leasehold.release($1, $2)'

const HEARTBEAT = "select h.owner, h.outcome from leasehold.heartbeat($1, '3 seconds', $2) as h"
