/* The floor under any broker: what the kernel, one parse and one copy cost, and nothing else.
 *
 * Every message goes at once to the one peer that consumes; there are no queues, no credit and no checks, and every
 * publish is confirmed. It is good for one publisher and one consumer on one queue, and for nothing but comparison.
 *
 *     nullbroker        listens on a free port of the loopback and prints it */
#include "frames.h"

#include <sys/epoll.h>

typedef struct Peer {
  int fd;
  Buffer in, out;
  bool greeted, confirms, owes_confirm;
  uint64_t published, delivered;
} Peer;

static Peer *consumer;
static char consumer_tag[256];

static void answer(Peer *peer, uint16_t channel, uint32_t method, const void *arguments, size_t size) {
  size_t at = begin_method(&peer->out, channel, method);
  put(&peer->out, arguments, size);
  end_frame(&peer->out, at);
}

static void greet(Peer *peer) {
  Buffer *out = &peer->out;
  size_t at = begin_method(out, 0, CONNECTION_START);
  put_16(out, 0x0009); /* version 0-9 */
  put_32(out, 0);      /* no properties */
  put_32(out, 5);
  put(out, "PLAIN", 5);
  put_32(out, 5);
  put(out, "en_US", 5);
  end_frame(out, at);
}

static void deliver(Peer *peer, const uint8_t *arguments) {
  peer->published++;
  peer->owes_confirm = peer->confirms;
  if (!consumer) return;
  const uint8_t *route = arguments + 2; /* exchange and key stand in a delivery as they stand in a publish */
  size_t size = 1u + route[0];
  size += 1u + route[size];
  Buffer *out = &consumer->out;
  size_t at = begin_method(out, 1, BASIC_DELIVER);
  put_short(out, consumer_tag);
  put_64(out, ++consumer->delivered);
  put_8(out, 0);
  put(out, route, size);
  end_frame(out, at);
}

static void subscribe(Peer *peer, Frame *frame) {
  const uint8_t *tag = frame->payload + 3 + frame->payload[2];
  memcpy(consumer_tag, tag + 1, tag[0]);
  consumer_tag[tag[0]] = 0;
  consumer = peer;
  answer(peer, frame->channel, BASIC_CONSUME_OK, tag, 1u + tag[0]);
}

static void take_method(Peer *peer, Frame *frame) {
  static const uint8_t tune[8] = {0, 0, 0, 2, 0, 0, 0, 0}, zeros[16];
  uint16_t channel = frame->channel;
  switch (frame->method) {
    case BASIC_PUBLISH: deliver(peer, frame->payload); break;
    case BASIC_ACK:
    case CONNECTION_TUNE_OK: break;
    case CONNECTION_START_OK: answer(peer, 0, CONNECTION_TUNE, tune, 8); break;
    case CONNECTION_OPEN: answer(peer, 0, CONNECTION_OPEN_OK, zeros, 1); break;
    case CHANNEL_OPEN: answer(peer, channel, CHANNEL_OPEN_OK, zeros, 4); break;
    case QUEUE_DECLARE: answer(peer, channel, QUEUE_DECLARE_OK, zeros, 9); break;
    case QUEUE_DELETE: answer(peer, channel, QUEUE_DELETE_OK, zeros, 4); break;
    case BASIC_QOS: answer(peer, channel, BASIC_QOS_OK, zeros, 0); break;
    case BASIC_CONSUME: subscribe(peer, frame); break;
    case CONFIRM_SELECT:
      peer->confirms = true;
      answer(peer, channel, CONFIRM_SELECT_OK, zeros, 0);
      break;
    default: fail("the null broker does not know method %u.%u", frame->method >> 16, frame->method & 0xFFFF);
  }
}

static void flush(Peer *peer) {
  if (!peer->out.end) return;
  send_all(peer->fd, peer->out.data, peer->out.end);
  peer->out.end = 0;
}

static void serve(Peer *peer) {
  if (!peer->greeted) {
    if (peer->in.end - peer->in.start < 8) return;
    peer->in.start += 8;
    peer->greeted = true;
    greet(peer);
  }
  Frame frame;
  while (next_frame(&peer->in, &frame)) {
    if (frame.kind == METHOD) take_method(peer, &frame);
    else if (consumer) put(&consumer->out, frame.payload - 7, frame.size + FRAME_OVERHEAD);
  }
  if (peer->owes_confirm) {
    peer->owes_confirm = false;
    uint8_t confirm[9] = {0};
    uint64_t tag = htobe64(peer->published);
    memcpy(confirm, &tag, 8);
    confirm[8] = 1;
    answer(peer, 1, BASIC_ACK, confirm, 9);
  }
  if (consumer && consumer != peer) flush(consumer);
  flush(peer);
}

int main(void) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 64)) fail("cannot listen");
  getsockname(listener, (struct sockaddr *)&address, &size);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
  printf("%u\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    if (epoll_wait(poll, &event, 1, -1) < 1) continue;
    Peer *peer = event.data.ptr;
    if (!peer) {
      peer = zeroed(1, sizeof *peer);
      peer->fd = accept(listener, NULL, NULL);
      without_delay(peer->fd);
      struct epoll_event mine = {.events = EPOLLIN, .data.ptr = peer};
      epoll_ctl(poll, EPOLL_CTL_ADD, peer->fd, &mine);
    } else if (read_more(peer->fd, &peer->in, 0) < 0) {
      if (consumer == peer) consumer = NULL;
      close(peer->fd);
      free(peer->in.data);
      free(peer->out.data);
      free(peer);
    } else {
      serve(peer);
    }
  }
}
