"""pika, an AMQP client, talks to a broker in this process: both sides see the same queues.

Against `rookery serve` only the address differs: `pika.ConnectionParameters("localhost")`.

Prints:

    the program got: order 1 from a pika
    pika got: receipt 1
    confirmed: a message that nobody wants came back
"""

import pika
import pika.exceptions

import rookery
from rookery.server import attach_thread

with rookery.Broker() as broker:
    orders = broker.queue("orders")
    receipts = broker.queue("receipts")
    listening = attach_thread(broker, amqp=0)
    host, _, port = listening.amqp.rpartition(":")

    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", "order 1", pika.BasicProperties(headers={"sender": "a pika"}))

        (delivery,) = orders.claim(wait_ms=1_000)
        print("the program got:", delivery.body.decode(), "from", delivery.message.meta["sender"])
        delivery.ack()

        receipts.publish("receipt 1")
        method, _, body = next(channel.consume("receipts", inactivity_timeout=1))
        print("pika got:", body.decode())
        channel.basic_ack(method.delivery_tag)

        try:
            channel.basic_publish("", "nowhere", "hello?", mandatory=True)
        except pika.exceptions.UnroutableError:
            print("confirmed: a message that nobody wants came back")

    listening.close()
