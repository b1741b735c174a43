// kafkajs as a child process: one JSON object per line comes in, one per line goes out.
//
//   > {"id": 1, "do": "produce", "bootstrap": "127.0.0.1:9092", "topic": "t", ...}
//   < {"id": 1, "result": [0, 1, 2]}
//   < {"id": 2, "error": {"name": "KafkaJSProtocolError", "type": "INVALID_TOPIC_EXCEPTION", ...}}
//
// Commands run concurrently; each is answered once. Bytes are base64 in both directions. When the
// input ends, everything is disconnected and the process ends. It is started in the directory that
// holds node_modules, so packages are looked for there and not beside this file.

const { createRequire } = require('module')
const { createInterface } = require('readline')

const packages = createRequire(process.cwd() + '/')
const { CompressionCodecs, CompressionTypes, Kafka, PartitionAssigners, logLevel } = packages('kafkajs')
const lz4 = packages('lz4js')
const xxhash = packages('lz4js/xxh32.js')
const snappy = packages('kafkajs-snappy')
const zstd = packages('@bokuweb/zstd-wasm')

const LZ4_BLOCK_BYTES = 4 << 20
const ZSTD_LARGEST_BYTES = 16 << 20 // where a frame does not tell its size

// lz4js looks for the checksum of a block before the block; aiokafka's frames have some. So the
// frame is taken apart here, and lz4js is left with the blocks.
function blocksOfLz4Frame(frame) {
  const flags = frame.readUInt8(4)
  const largest = 1 << (2 * (frame.readUInt8(5) >> 4) + 8)
  const checksumBytes = flags & 0x10 ? 4 : 0
  const blocks = []
  let at = 7 + (flags & 0x08 ? 8 : 0) + (flags & 0x01 ? 4 : 0)
  for (;;) {
    const length = frame.readUInt32LE(at) & 0x7fffffff
    const isCompressed = frame.readUInt32LE(at) < 0x80000000
    at += 4
    if (length === 0) return { largest, blocks }
    blocks.push({ at, length, isCompressed })
    at += length + checksumBytes
  }
}

function decompressLz4(frame) {
  const { largest, blocks } = blocksOfLz4Frame(frame)
  const found = Buffer.alloc(largest * blocks.length)
  let size = 0
  for (const { at, length, isCompressed } of blocks) {
    size = isCompressed
      ? lz4.decompressBlock(frame, found, at, length, size)
      : size + frame.copy(found, size, at, at + length)
  }
  return found.subarray(0, size)
}

// It also says that blocks depend on each other, which Java's clients refuse. A frame of one block,
// which holds 4 MiB, may say that they do not; the byte behind the descriptor is its checksum.
function compressLz4(content) {
  const frame = Buffer.from(lz4.compress(content))
  if (content.length <= LZ4_BLOCK_BYTES) {
    frame[4] |= 0x20
    frame[6] = (xxhash.hash(0, frame, 4, 2) >> 8) & 0xff
  }
  return frame
}

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => compressLz4(encoder.buffer),
  decompress: async buffer => decompressLz4(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async buffer =>
    Buffer.from(zstd.decompress(buffer, { defaultHeapSize: ZSTD_LARGEST_BYTES })),
})
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const clients = new Map()
const connected = new Map() // producers and admins, by what makes them different
const members = new Map()

function clientOf(bootstrap) {
  if (!clients.has(bootstrap)) {
    clients.set(
      bootstrap,
      new Kafka({
        brokers: [bootstrap],
        clientId: 'kafkajs',
        logLevel: logLevel.NOTHING,
        retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 40 },
      })
    )
  }
  return clients.get(bootstrap)
}

function connect(key, make) {
  if (!connected.has(key)) {
    const one = make()
    connected.set(key, one.connect().then(() => one))
  }
  return connected.get(key)
}

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = buffer => (buffer === null || buffer === undefined ? null : buffer.toString('base64'))

// kafkajs keeps headers by name: one value, or all values of that name in order.
function headersSent(pairs) {
  const headers = {}
  for (const [name, value] of pairs) {
    headers[name] = [...(headers[name] || []), bytes(value)]
  }
  return headers
}

function headersRead(headers) {
  return Object.entries(headers).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map(value => [name, text(value)])
  )
}

function recordOf(message) {
  return {
    offset: Number(message.offset),
    key: text(message.key),
    value: text(message.value),
    headers: headersRead(message.headers),
    timestamp: Number(message.timestamp),
  }
}

const commands = {
  // How `bootstrap`, which then is a name like any other, is reached: `options` as kafkajs takes them,
  // but for a `token`, which stands for a function that gives it.
  async client({ bootstrap, options }) {
    const token = options.sasl?.token
    if (token) options.sasl.oauthBearerProvider = async () => ({ value: token })
    clients.set(bootstrap, new Kafka({ clientId: 'kafkajs', logLevel: logLevel.NOTHING, ...options }))
  },

  // Everything in one request, so in one batch per partition; the offsets acknowledged.
  async produce({ bootstrap, topic, partition, records, codec, acks, idempotent }) {
    const producer = await connect(`producer ${bootstrap} ${idempotent}`, () =>
      clientOf(bootstrap).producer({ idempotent, allowAutoTopicCreation: true })
    )
    const messages = records.map(record => ({
      key: bytes(record.key),
      value: bytes(record.value),
      headers: headersSent(record.headers),
      timestamp: String(record.timestamp),
      partition,
    }))
    const answers = await producer.send({ topic, messages, acks, compression: CODECS[codec] })
    const [answer] = answers
    const first = answer === undefined ? -1 : Number(answer.baseOffset)
    return messages.map((_, number) => (first < 0 ? -1 : first + number))
  },

  // As many records of every topic's partition as asked for, from an offset on: a new group each.
  async read({ bootstrap, group, counts, partition, offset }) {
    const consumer = clientOf(bootstrap).consumer({ groupId: group, maxWaitTimeInMs: 100 })
    const found = Object.fromEntries(Object.keys(counts).map(topic => [topic, []]))
    let missing = Object.values(counts).reduce((sum, count) => sum + count, 0)
    try {
      await consumer.connect()
      await consumer.subscribe({ topics: Object.keys(counts), fromBeginning: true })
      await new Promise((resolve, reject) => {
        consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
        consumer
          .run({
            autoCommit: false,
            partitionsConsumedConcurrently: 4,
            eachMessage: async ({ topic, partition: from, message }) => {
              if (from !== partition || found[topic].length >= counts[topic]) return
              if (Number(message.offset) < offset) return
              found[topic].push(recordOf(message))
              missing -= 1
              if (missing === 0) resolve()
            },
          })
          .catch(reject)
        if (offset > 0) {
          for (const topic of Object.keys(counts)) {
            consumer.seek({ topic, partition, offset: String(offset) })
          }
        }
      })
    } finally {
      await consumer.disconnect()
    }
    return found
  },

  // A member that reads until it is stopped. Its state is asked for.
  async join({ bootstrap, name, group, topic, settings, autoCommitMs }) {
    const consumer = clientOf(bootstrap).consumer({
      groupId: group,
      maxWaitTimeInMs: 100,
      partitionAssigners: [PartitionAssigners.roundRobin],
      ...settings,
    })
    const member = { consumer, read: [], assigned: [], joins: 0, next: new Map(), failure: null }
    members.set(name, member)
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.assigned = payload.memberAssignment[topic] || []
      member.joins += 1
    })
    consumer.on(consumer.events.REBALANCING, () => {
      member.assigned = []
    })
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      if (!payload.restart) member.failure = String(payload.error)
    })
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({
      autoCommit: autoCommitMs !== null,
      autoCommitInterval: autoCommitMs,
      eachMessage: async ({ partition, message }) => {
        member.read.push(text(message.value))
        member.next.set(partition, { topic, partition, offset: String(Number(message.offset) + 1) })
      },
    })
  },

  // What was read since it was asked last, and what it has now.
  async state({ name }) {
    const { read, assigned, joins, failure } = members.get(name)
    return { read: read.splice(0), assigned, joins, failure }
  },

  async commit({ name }) {
    const { consumer, next } = members.get(name)
    if (next.size > 0) await consumer.commitOffsets([...next.values()])
  },

  async seek({ name, topic, partition, offset }) {
    members.get(name).consumer.seek({ topic, partition, offset: String(offset) })
  },

  async leave({ name }) {
    const { consumer } = members.get(name)
    members.delete(name)
    await consumer.disconnect()
  },

  // Any method of the administrator.
  async admin({ bootstrap, method, arguments: given }) {
    const admin = await connect(`admin ${bootstrap}`, () => 
      clientOf(bootstrap).admin({ retry: { initialRetryTime: 20, retries: 5 } })
    )
    return admin[method](...given)
  },

  // Disconnect from one cluster: its brokers are about to go.
  async forget({ bootstrap }) {
    for (const [key, one] of [...connected]) {
      if (key.includes(` ${bootstrap}`)) {
        connected.delete(key)
        await (await one).disconnect()
      }
    }
    clients.delete(bootstrap)
  },

  // The same of a client that may never have been let in, with the member of its name.
  async drop({ bootstrap }) {
    if (members.has(bootstrap)) await commands.leave({ name: bootstrap })
    for (const [key, one] of [...connected]) {
      if (key.split(' ')[1] === bootstrap) {
        connected.delete(key)
        await one.then(it => it.disconnect(), () => null)
      }
    }
    clients.delete(bootstrap)
  },
}

function errorOf(error) {
  const { name, message, type, errors, groups } = error
  const parts = errors || (groups || []).map(group => group.error)
  return { name, message: String(message), type, errors: parts.map(errorOf) }
}

async function run(line) {
  const { id, do: command, ...rest } = JSON.parse(line)
  let answer
  try {
    answer = { id, result: (await commands[command](rest)) ?? null }
  } catch (error) {
    answer = { id, error: errorOf(error) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}

async function main() {
  await zstd.init()
  const running = new Set()
  for await (const line of createInterface({ input: process.stdin })) {
    const one = run(line).finally(() => running.delete(one))
    running.add(one)
  }
  for (const { consumer } of members.values()) await consumer.disconnect()
  for (const one of connected.values()) await (await one).disconnect()
  process.exit(0)
}

main()
