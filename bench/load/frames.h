/* What the load generator and the null broker share: growing buffers, AMQP 0-9-1 frames in them, sockets, the clock.
 *
 * A frame is kind (1 octet), channel (2), payload size (4), payload, 0xCE; a method's payload begins with one 32-bit
 * number, its class and method. Nothing here checks what an honest peer would not send: the peers are our own. */
#ifndef FRAMES_H
#define FRAMES_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, FRAME_END = 0xCE, FRAME_OVERHEAD = 8 };
enum {
  CONNECTION_START = 0x000A000A,
  CONNECTION_START_OK = 0x000A000B,
  CONNECTION_TUNE = 0x000A001E,
  CONNECTION_TUNE_OK = 0x000A001F,
  CONNECTION_OPEN = 0x000A0028,
  CONNECTION_OPEN_OK = 0x000A0029,
  CONNECTION_CLOSE = 0x000A0032,
  CHANNEL_OPEN = 0x0014000A,
  CHANNEL_OPEN_OK = 0x0014000B,
  CHANNEL_CLOSE = 0x00140028,
  EXCHANGE_DECLARE = 0x0028000A,
  EXCHANGE_DECLARE_OK = 0x0028000B,
  EXCHANGE_DELETE = 0x00280014,
  EXCHANGE_DELETE_OK = 0x00280015,
  QUEUE_DECLARE = 0x0032000A,
  QUEUE_DECLARE_OK = 0x0032000B,
  QUEUE_BIND = 0x00320014,
  QUEUE_BIND_OK = 0x00320015,
  QUEUE_DELETE = 0x00320028,
  QUEUE_DELETE_OK = 0x00320029,
  BASIC_QOS = 0x003C000A,
  BASIC_QOS_OK = 0x003C000B,
  BASIC_CONSUME = 0x003C0014,
  BASIC_CONSUME_OK = 0x003C0015,
  BASIC_PUBLISH = 0x003C0028,
  BASIC_RETURN = 0x003C0032,
  BASIC_DELIVER = 0x003C003C,
  BASIC_ACK = 0x003C0050,
  BASIC_NACK = 0x003C0078,
  CONFIRM_SELECT = 0x0055000A,
  CONFIRM_SELECT_OK = 0x0055000B,
};

typedef struct {
  uint8_t *data;
  size_t start, end, room;
} Buffer;

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "load: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  exit(2);
}

static inline void *zeroed(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) fail("out of memory");
  return memory;
}

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Writing into a buffer */

static inline uint8_t *reserve(Buffer *b, size_t size) {
  if (b->end + size > b->room) {
    b->room = (b->end + size) * 2;
    b->data = realloc(b->data, b->room);
    if (!b->data) fail("out of memory");
  }
  uint8_t *at = b->data + b->end;
  b->end += size;
  return at;
}

static inline void put(Buffer *b, const void *bytes, size_t size) { memcpy(reserve(b, size), bytes, size); }
static inline void put_8(Buffer *b, uint8_t value) { put(b, &value, 1); }
static inline void put_16(Buffer *b, uint16_t value) { put(b, &(uint16_t){htobe16(value)}, 2); }
static inline void put_32(Buffer *b, uint32_t value) { put(b, &(uint32_t){htobe32(value)}, 4); }
static inline void put_64(Buffer *b, uint64_t value) { put(b, &(uint64_t){htobe64(value)}, 8); }
static inline void put_short(Buffer *b, const char *text) {
  put_8(b, (uint8_t)strlen(text));
  put(b, text, strlen(text));
}

/* The size of a frame is known when it ends; what begin returns says where to fill it in. */
static inline size_t begin_frame(Buffer *b, uint8_t kind, uint16_t channel) {
  put_8(b, kind);
  put_16(b, channel);
  put_32(b, 0);
  return b->end;
}
static inline size_t begin_method(Buffer *b, uint16_t channel, uint32_t method) {
  size_t at = begin_frame(b, METHOD, channel);
  put_32(b, method);
  return at;
}
static inline void end_frame(Buffer *b, size_t at) {
  uint32_t size = htobe32((uint32_t)(b->end - at));
  memcpy(b->data + at - 4, &size, 4);
  put_8(b, FRAME_END);
}

/* Reading */

static inline uint16_t get_16(const uint8_t *at) {
  uint16_t value;
  memcpy(&value, at, 2);
  return be16toh(value);
}
static inline uint32_t get_32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return be32toh(value);
}
static inline uint64_t get_64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, 8);
  return be64toh(value);
}

typedef struct {
  uint8_t kind;
  uint16_t channel;
  uint32_t size, method;
  const uint8_t *payload; /* of a method: its arguments; of anything else all of it */
} Frame;

/* Take the next whole frame out of the buffer; it stays valid until more is read. */
static inline bool next_frame(Buffer *b, Frame *frame) {
  size_t have = b->end - b->start;
  const uint8_t *at = b->data + b->start;
  if (have < FRAME_OVERHEAD) return false;
  uint32_t size = get_32(at + 3);
  if (have < size + FRAME_OVERHEAD) return false;
  if (at[7 + size] != FRAME_END) fail("a frame does not end where it says");
  *frame = (Frame){.kind = at[0], .channel = get_16(at + 1), .size = size, .payload = at + 7};
  if (frame->kind == METHOD) {
    frame->method = get_32(at + 7);
    frame->payload += 4;
  }
  b->start += size + FRAME_OVERHEAD;
  return true;
}

/* Sockets */

/* Read what there is: bytes read, 0 when there is nothing and MSG_DONTWAIT was given, -1 at the end. */
static inline ssize_t read_more(int fd, Buffer *b, int flags) {
  size_t rest = b->end - b->start;
  if (b->start && (rest == 0 || b->end == b->room)) {
    memmove(b->data, b->data + b->start, rest);
    b->start = 0;
    b->end = rest;
  }
  if (b->room - b->end < 1024) {
    reserve(b, 65536);
    b->end -= 65536;
  }
  for (;;) {
    ssize_t size = recv(fd, b->data + b->end, b->room - b->end, flags);
    if (size > 0) {
      b->end += (size_t)size;
      return size;
    }
    if (size < 0 && errno == EINTR) continue;
    return size < 0 && errno == EAGAIN ? 0 : -1;
  }
}

static inline bool send_all(int fd, const uint8_t *bytes, size_t size) {
  while (size) {
    ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    size -= (size_t)sent;
  }
  return true;
}

static inline void without_delay(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); }
#endif
