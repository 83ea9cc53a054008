// amqplib as a Node program uses it: `node amqplib_client.js URL NAME` runs one scenario and prints what it saw as JSON.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const amqplib = require('amqplib');

const [url, name] = process.argv.slice(2);

// The next `count` messages of a queue, not settled.
async function take(channel, queue, count) {
  const got = [];
  let enough;
  const done = new Promise((resolve) => (enough = resolve));
  const { consumerTag } = await channel.consume(queue, (message) => {
    if (message !== null && got.push(message) === count) enough();
  });
  await done;
  await channel.cancel(consumerTag);
  return got;
}

const bodies = (messages) => messages.map((each) => each.content.toString());

const scenarios = {
  async publish_and_consume(connection) {
    const channel = await connection.createChannel();
    await channel.prefetch(200);
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (let n = 0; n < 100; n++) {
      channel.sendToQueue(queue, Buffer.from(String(n)), { messageId: String(n), headers: { n, half: n / 2, list: [n] } });
    }
    const got = await take(channel, queue, 100);
    got.forEach((message) => channel.ack(message));
    const { messageCount } = await channel.checkQueue(queue);
    return { bodies: bodies(got), last: got[99].properties.headers, messageCount };
  },

  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', {
      exclusive: true,
      maxLength: 3,
      arguments: { 'x-overflow': 'reject-publish' },
    });
    const outcomes = await Promise.all(
      [0, 1, 2, 3, 4].map(
        (n) =>
          new Promise((resolve) =>
            channel.sendToQueue(queue, Buffer.from(String(n)), {}, (error) => resolve(error === null ? 'ack' : 'nack')),
          ),
      ),
    );
    await channel.waitForConfirms().catch(() => null);
    return outcomes;
  },

  async returns(connection) {
    const channel = await connection.createConfirmChannel();
    const returned = once(channel, 'return');
    channel.publish('', 'nowhere', Buffer.from('lost'), { mandatory: true });
    const [message] = await returned;
    await channel.waitForConfirms();
    return [message.fields.replyCode, message.fields.replyText, message.content.toString()];
  },

  async dead_letters(connection) {
    const channel = await connection.createChannel();
    const dead = (await channel.assertQueue('', { exclusive: true })).queue;
    const { queue } = await channel.assertQueue('', {
      exclusive: true,
      deadLetterExchange: '',
      deadLetterRoutingKey: dead,
      messageTtl: 60000,
    });
    channel.sendToQueue(queue, Buffer.from('refused'));
    channel.sendToQueue(queue, Buffer.from('expired'), { expiration: 50 });
    channel.nack(await channel.get(queue), false, false);
    const got = await take(channel, dead, 2);
    return got.map((each) => [each.content.toString(), each.properties.headers['x-death'][0].reason]).sort();
  },

  async priorities(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true, maxPriority: 10 });
    for (const priority of [1, 9, 5]) channel.sendToQueue(queue, Buffer.from(String(priority)), { priority });
    return bodies(await take(channel, queue, 3));
  },

  async exchanges(connection) {
    const channel = await connection.createChannel();
    await channel.assertExchange('node-events', 'topic', { autoDelete: true });
    await channel.assertExchange('node-headers', 'headers', { autoDelete: true });
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindQueue(queue, 'node-events', 'user.*');
    await channel.bindQueue(queue, 'node-headers', '', { 'x-match': 'any', kind: 'b', other: 1 });
    channel.publish('node-events', 'user.created', Buffer.from('1'));
    channel.publish('node-events', 'order.created', Buffer.from('2'));
    channel.publish('node-headers', '', Buffer.from('3'), { headers: { kind: 'a' } });
    channel.publish('node-headers', '', Buffer.from('4'), { headers: { kind: 'b' } });
    const got = bodies(await take(channel, queue, 2));
    return { got, left: (await channel.checkQueue(queue)).messageCount };
  },

  async large_body(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    const body = Buffer.alloc(2_000_000, 'rookery');
    channel.sendToQueue(queue, body);
    await channel.waitForConfirms();
    const message = await channel.get(queue);
    channel.ack(message);
    return message.content.equals(body);
  },

  async requeue(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    channel.sendToQueue(queue, Buffer.from('again'));
    const [first] = await take(channel, queue, 1);
    channel.nack(first);
    const [second] = await take(channel, queue, 1);
    await channel.recover();
    const [third] = await take(channel, queue, 1);
    return [first, second, third].map((each) => each.fields.redelivered);
  },

  async cancelled(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    let told;
    const cancelled = new Promise((resolve) => (told = resolve));
    await channel.consume(queue, (message) => told(message));
    await (await connection.createChannel()).deleteQueue(queue);
    return await cancelled;
  },

  async channel_error(connection) {
    const broken = await connection.createChannel();
    const error = once(broken, 'error');
    await assert.rejects(broken.checkQueue('nowhere'));
    const [{ code, message }] = await error;
    const { queue } = await (await connection.createChannel()).assertQueue('', { exclusive: true });
    return { code, message, alive: queue.startsWith('amq.gen-') };
  },
};

async function main() {
  const connection = await amqplib.connect(url);
  const seen = await scenarios[name](connection);
  await connection.close();
  process.stdout.write(JSON.stringify(seen));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
