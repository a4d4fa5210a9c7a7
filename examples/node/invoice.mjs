// A worker that makes invoices final, each once, as one of many; in JavaScript, through leases.mjs alone.
//
// It is the example `invoice` (examples/invoice) in another language, and may work beside it.
//
//     node invoice.mjs              # works off the open invoices in the database of DATABASE_URL
//     node invoice.mjs --prove      # a worker is stopped (SIGSTOP) for longer than its ttl, and then refused
//
// Needs pg (`npm install pg`), and the schema leasehold in the database.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'

import { Leases, Lost } from './leases.mjs'

const TTL = 2 // how long an invoice waits when the worker dies that is at it
const READY = 'has rendered its invoice, holding token '
const REFUSED = 'refused to finalise invoice '

/** Finalises invoices until none is open, or until told to end; one that is begun is carried to its end. */
async function work(tenant, render) {
  const leases = new Leases(process.env.DATABASE_URL, `invoice.mjs:${process.pid}`)
  const db = connect()
  let isToldToEnd = false
  for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => (isToldToEnd = true))
  try {
    for (let open; !isToldToEnd && (open = await openInvoices(db)).length > 0; ) {
      const { invoice, lease } = await takeOne(leases, tenant, open)
      if (!lease) continue
      try {
        // Looked at again: it may have been finalised before the lease was granted. From here on nobody else
        // can, as long as what is written is fenced.
        if (await isOpen(db, invoice)) {
          await render(invoice, lease)
          await finalise(db, invoice, lease)
        }
      } finally {
        await lease.release()
      }
    }
  } finally {
    await leases.close()
    await db.end()
  }
}

/** The first invoice that nobody is at, or else the first of all, when it comes free. */
async function takeOne(leases, tenant, open) {
  for (const invoice of open) {
    const lease = await leases.acquire(`${tenant}:invoice:${invoice}`, { ttl: TTL, wait: 0 })
    if (lease) return { invoice, lease }
  }
  const [invoice] = open
  return { invoice, lease: await leases.acquire(`${tenant}:invoice:${invoice}`, { ttl: TTL, wait: 5 }) }
}

/** Everything that makes it final, in one transaction that is void if the lease has passed on. */
async function finalise(db, invoice, lease) {
  const client = await db.connect()
  try {
    await client.query('begin')
    await lease.fence(client)
    const { rows } = await client.query('update numbering set latest = latest + 1 returning latest')
    const number = rows[0].latest
    await client.query('update invoice set number = $1 where id = $2', [number, invoice])
    await client.query('insert into posting values ($1, $2, $3)', [invoice, number, lease.fencingToken])
    await client.query('commit')
    console.log(`invoice ${invoice} is final: number ${number}`)
    client.release()
  } catch (error) {
    client.release(true) // the connection is closed, which rolls back
    if (!(error instanceof Lost)) throw error
    console.log(`${REFUSED}${invoice}: ${error.message}`)
  }
}

async function openInvoices(db) {
  const { rows } = await db.query('select id from invoice where number is null order by id limit 20')
  return rows.map(({ id }) => id)
}

async function isOpen(db, invoice) {
  const { rows } = await db.query('select number is null as is_open from invoice where id = $1', [invoice])
  return rows[0].is_open
}

function connect() {
  const db = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 2 })
  db.on('error', () => {}) // of a connection that nobody uses; the next one is told by its query
  return db
}

async function render() {
  await pause(25)
}

// From here on: the proof.

/** Stands where it can be stopped: ready to post, and posting as soon as a line comes in. */
async function renderUntilTold(_invoice, lease) {
  await render()
  console.log(`${READY}${lease.fencingToken}`)
  await once(process.stdin, 'data')
  process.stdin.destroy()
}

/** A lease outlives its ttl while it is held, and whoever waits is told, long before a heartbeat. */
async function proveClient(db, tenant) {
  const name = `${tenant}:client`
  const ours = new Leases(process.env.DATABASE_URL)
  const theirs = new Leases(process.env.DATABASE_URL)
  try {
    let lease = await ours.acquire(name, { ttl: 1 })
    await pause(1500)
    if (!lease.isHeld()) throw new Error('a lease was not renewed')
    const client = await db.connect()
    await client.query('begin')
    await lease.fence(client)
    await client.query('commit')
    client.release()
    if (await theirs.acquire(name, { wait: 0.1 })) throw new Error('a lease was granted twice')
    const beganAt = performance.now()
    for (let turn = 0; turn < 20; turn++) {
      const granted = (turn % 2 ? ours : theirs).acquire(name)
      const ahead = async () => (await db.query('select leasehold.ahead($1, null)', [name])).rows[0].ahead
      while ((await ahead()) !== 1) await pause(5)
      await lease.release()
      lease = await granted
    }
    await lease.release()
    const took = (performance.now() - beganAt) / 1000
    console.log(`renewed beyond its ttl; then 20 turns by two clients in ${took.toFixed(2)} s`)
    if (took > 5) throw new Error('waiters are not told when it is their turn')
  } finally {
    await Promise.all([ours.close(), theirs.close()])
  }
}

async function prove() {
  const schema = `invoice_node_${process.pid}`
  process.env.PGOPTIONS = `-c search_path=${schema}`
  const db = connect()
  await db.query(`create schema ${schema}`)
  const players = []
  const interrupted = new Promise((_, reject) => {
    for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => reject(new Error('told to end')))
  })
  try {
    await Promise.race([proveClient(db, schema).then(() => play(db, schema, players)), interrupted])
  } finally {
    await Promise.all(players.map((player) => player.kill()))
    await db.query(`drop schema ${schema} cascade`)
    await db.end()
  }
}

async function play(db, tenant, players, invoices = 12) {
  await db.query(`
    create table invoice (id bigint primary key, number bigint);
    insert into invoice select generate_series(1, ${invoices});
    create table numbering (latest bigint not null);
    insert into numbering values (0);
    create table posting (invoice bigint, number bigint, fence bigint)`)
  const start = (label, ...args) => {
    const player = new Player(label, args)
    players.push(player)
    return player
  }

  const sleeper = start('sleeper', '--sleeper', tenant)
  const stale = (await sleeper.hear(READY)).slice(READY.length)
  sleeper.process.kill('SIGSTOP')
  console.log('the sleeper is stopped (SIGSTOP), about to post')
  const workers = [start('worker 1', tenant), start('worker 2', tenant)]
  for (const worker of workers) await worker.end()
  // Told while it stands still, so that the posting is the first thing it does.
  sleeper.process.stdin.write('post\n')
  sleeper.process.kill('SIGCONT')
  console.log('the sleeper goes on (SIGCONT), without looking again')
  await sleeper.hear(REFUSED)
  await sleeper.end()

  const { rows } = await db.query({
    text: `select count(*), count(distinct invoice), count(distinct number), max(number),
      count(*) filter (where fence = $1) from posting`,
    values: [stale],
    rowMode: 'array',
  })
  const expected = [invoices, invoices, invoices, invoices, 0]
  if (String(rows[0]) !== String(expected)) {
    throw new Error(`not each invoice once, with numbers that have no gap: ${rows[0]}`)
  }
  console.log(`${invoices} invoices, each posted once, with numbers from 1 to ${invoices}`)
}

/** This program once more, as a process of its own. */
class Player {
  #label
  #lines = []
  #heard = () => {}
  #ended

  constructor(label, args) {
    this.#label = label
    this.process = spawn(process.execPath, [fileURLToPath(import.meta.url), ...args], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    this.#ended = once(this.process, 'exit')
    const lines = createInterface({ input: this.process.stdout })
    lines.on('line', (line) => {
      console.log(`  ${label.padEnd(9)} ${line}`)
      this.#lines.push(line)
      this.#heard()
    })
    lines.on('close', () => {
      this.#lines.push(undefined)
      this.#heard()
    })
  }

  async hear(beginning) {
    while (true) {
      while (this.#lines.length > 0) {
        const line = this.#lines.shift()
        if (line === undefined) throw new Error(`${this.#label} has ended without a line '${beginning}'`)
        if (line.startsWith(beginning)) return line
      }
      await new Promise((resolve) => (this.#heard = resolve))
    }
  }

  async end() {
    const [code, signal] = await this.#ended
    if (code !== 0) throw new Error(`${this.#label} has failed: ${signal ?? code}`)
  }

  async kill() {
    this.process.kill('SIGKILL')
    await this.#ended
  }
}

const [mode, ...rest] = process.argv.slice(2)
if (mode === '--prove') await prove()
else if (mode === '--sleeper') await work(rest[0], renderUntilTold)
else await work(mode ?? 'default', render)
