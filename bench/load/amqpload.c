/* A load of AMQP 0-9-1 clients in one process: a thread for each publisher and each consumer, frames made by hand.
 *
 *     amqpload port=5672 count=100000 window=256 prefetch=200 ...      (all options: `options` below)
 *
 * It must be much cheaper than the broker, so a publisher sends as many messages as fit 64 KiB or its window of
 * unconfirmed ones in one call, and a consumer takes all that one read brought and acknowledges it with one write.
 *
 * Every body begins with the number of its message, its publisher, and the time. So each delivery is checked: that it
 * belongs into its queue, came once, and behind all that its publisher sent there before. What was not seen is lost.
 *
 * Whoever started it measures the server. At each stage (start, held, ready, filled, done) it prints `at STAGE` and
 * waits for a line on its input; at the end it prints one line of JSON. */
#include "frames.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { STAMP_BYTES = 24, SEND_BYTES = 65536, KEYS = 512, MS = 1000000 };

static struct {
  uint64_t port, count, size, publishers, consumers, queues, window, prefetch, ack_every, rate, held, bindings;
  uint64_t durable, backlog, fanout, topic, patience_sec;
} options = {.port = 5672, .count = 100000, .size = 256, .publishers = 1, .consumers = 1, .queues = 1, .ack_every = 1,
             .bindings = 1000, .patience_sec = 30};

static const struct {
  const char *name;
  uint64_t *value;
} known[] = {
    {"port", &options.port},
    {"count", &options.count},           /* messages to publish */
    {"size", &options.size},             /* bytes of a body */
    {"publishers", &options.publishers}, /* each sends its share of the messages, in turn to all queues */
    {"consumers", &options.consumers},   /* the queues are dealt out to them */
    {"queues", &options.queues},
    {"window", &options.window},       /* publishes that may be unconfirmed; 0: no confirms are asked for */
    {"prefetch", &options.prefetch},   /* deliveries that may be unacknowledged; 0: none are acknowledged */
    {"ack_every", &options.ack_every}, /* deliveries to acknowledge at once */
    {"rate", &options.rate},           /* messages a second, each sent alone; 0: as fast as it goes */
    {"held", &options.held},           /* connections with a channel that say nothing */
    {"durable", &options.durable},     /* durable queues, persistent messages */
    {"backlog", &options.backlog},     /* consume only when all is published */
    {"fanout", &options.fanout},       /* through a fanout exchange to every queue */
    {"topic", &options.topic},         /* through a topic exchange with so many `bindings` */
    {"bindings", &options.bindings},
    {"patience_sec", &options.patience_sec}, /* give up when nothing comes for so long */
};

#include "topology.h"

/* A connection with one channel */

typedef struct {
  int fd;
  Buffer in, out;
} Link;

static void transmit(Link *link) {
  if (!send_all(link->fd, link->out.data, link->out.end)) fail("the server hung up");
  link->out.end = 0;
}

static void no_close(const Frame *frame) {
  if (frame->kind == METHOD && (frame->method == CONNECTION_CLOSE || frame->method == CHANNEL_CLOSE))
    fail("closed by the server: %u %.*s", get_16(frame->payload), frame->payload[2], frame->payload + 3);
}

/* Send what was written, if anything, and wait for a method. */
static Frame await(Link *link, uint32_t method) {
  Frame frame;
  transmit(link);
  for (;;) {
    while (next_frame(&link->in, &frame)) {
      no_close(&frame);
      if (frame.kind == METHOD && frame.method == method) return frame;
    }
    if (read_more(link->fd, &link->in, 0) < 0)
      fail("the server hung up instead of sending %u.%u", method >> 16, method & 0xFFFF);
  }
}

static void link_open(Link *link) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)options.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  link->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (link->fd < 0 || connect(link->fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect");
  without_delay(link->fd);
  Buffer *out = &link->out;
  put(out, "AMQP\0\0\x09\x01", 8);
  await(link, CONNECTION_START);
  size_t at = begin_method(out, 0, CONNECTION_START_OK);
  put_32(out, 0);
  put_short(out, "PLAIN");
  put_32(out, 12);
  put(out, "\0guest\0guest", 12);
  put_short(out, "en_US");
  end_frame(out, at);
  Frame tune = await(link, CONNECTION_TUNE);
  uint32_t frame_max = get_32(tune.payload + 2);
  if (frame_max && frame_max < options.size + FRAME_OVERHEAD) fail("a body does not fit a frame of the server");
  at = begin_method(out, 0, CONNECTION_TUNE_OK);
  put(out, tune.payload, 6);
  put_16(out, 0); /* no heartbeats: a run is short */
  end_frame(out, at);
  at = begin_method(out, 0, CONNECTION_OPEN);
  put_short(out, "/");
  put_16(out, 0);
  end_frame(out, at);
  await(link, CONNECTION_OPEN_OK);
  at = begin_method(out, 1, CHANNEL_OPEN);
  put_8(out, 0);
  end_frame(out, at);
  await(link, CHANNEL_OPEN_OK);
}

static void declare_all(Link *link) {
  Buffer *out = &link->out;
  char name[64], key[64];
  size_t at;
  if (options.fanout || options.topic) {
    at = begin_method(out, 1, EXCHANGE_DECLARE);
    put_16(out, 0);
    put_short(out, prefix);
    put_short(out, options.topic ? "topic" : "fanout");
    put_8(out, options.durable ? 2 : 0);
    put_32(out, 0);
    end_frame(out, at);
    await(link, EXCHANGE_DECLARE_OK);
  }
  for (uint32_t q = 0; q < options.queues; q++) {
    queue_name(name, sizeof name, q);
    at = begin_method(out, 1, QUEUE_DECLARE);
    put_16(out, 0);
    put_short(out, name);
    put_8(out, options.durable ? 2 : 0);
    put_32(out, 0);
    end_frame(out, at);
    await(link, QUEUE_DECLARE_OK);
  }
  uint64_t bindings = options.topic ? options.bindings : options.fanout ? options.queues : 0;
  for (uint32_t n = 0; n < bindings; n++) {
    queue_name(name, sizeof name, n % (uint32_t)options.queues);
    key[0] = 0;
    if (options.topic) word_of(key, sizeof key, patterns[n]);
    at = begin_method(out, 1, QUEUE_BIND);
    put_16(out, 0);
    put_short(out, name);
    put_short(out, prefix);
    put_short(out, key);
    put_8(out, 0);
    put_32(out, 0);
    end_frame(out, at);
    await(link, QUEUE_BIND_OK);
  }
}

static void delete_all(Link *link) {
  Buffer *out = &link->out;
  char name[64];
  for (uint32_t q = 0; q < options.queues; q++) {
    queue_name(name, sizeof name, q);
    size_t at = begin_method(out, 1, QUEUE_DELETE);
    put_16(out, 0);
    put_short(out, name);
    put_8(out, 0);
    end_frame(out, at);
    await(link, QUEUE_DELETE_OK);
  }
  if (!options.fanout && !options.topic) return;
  size_t at = begin_method(out, 1, EXCHANGE_DELETE);
  put_16(out, 0);
  put_short(out, prefix);
  put_8(out, 0);
  end_frame(out, at);
  await(link, EXCHANGE_DELETE_OK);
}

/* Publishing */

typedef struct {
  Link link;
  pthread_t thread;
  uint32_t index;
  uint64_t first, count, sent, low, unconfirmed, refused, returned, done_ns;
  bool *confirmed; /* by publish tag; all below `low` are */
} Publisher;

static pthread_barrier_t go;
static struct {
  Buffer bytes;
  size_t stamp;
} *templates; /* all frames of a message, by key */

static void make_templates(void) {
  templates = zeroed(key_count, sizeof *templates);
  for (uint32_t k = 0; k < key_count; k++) {
    Buffer *b = &templates[k].bytes;
    char key[64];
    key_name(key, sizeof key, k);
    size_t at = begin_method(b, 1, BASIC_PUBLISH);
    put_16(b, 0);
    put_short(b, options.fanout || options.topic ? prefix : "");
    put_short(b, key);
    put_8(b, 0);
    end_frame(b, at);
    at = begin_frame(b, HEADER, 1);
    put_32(b, 60 << 16);
    put_64(b, options.size);
    put_16(b, 0x1000); /* the only property is the delivery mode */
    put_8(b, options.durable ? 2 : 1);
    end_frame(b, at);
    at = begin_frame(b, BODY, 1);
    templates[k].stamp = b->end;
    memset(reserve(b, options.size), 'x', options.size);
    end_frame(b, at);
  }
}

static void write_message(Publisher *p) {
  uint64_t number = p->first + p->sent++;
  uint32_t key = (uint32_t)(number % key_count);
  Buffer *out = &p->link.out, *frames = &templates[key].bytes;
  uint8_t *at = reserve(out, frames->end);
  memcpy(at, frames->data, frames->end);
  uint64_t stamp[3] = {htobe64(number), htobe64(p->index), htobe64(now_ns())};
  memcpy(at + templates[key].stamp, stamp, sizeof stamp);
  if (options.window) p->unconfirmed++;
}

static void settle_publishes(Publisher *p, uint64_t tag, bool multiple) {
  for (uint64_t t = multiple ? p->low : tag; t <= tag; t++)
    if (!p->confirmed[t]) {
      p->confirmed[t] = true;
      p->unconfirmed--;
    }
  while (p->low <= p->count && p->confirmed[p->low]) p->low++;
}

static void take_confirms(Publisher *p, int flags) {
  Frame frame;
  if (read_more(p->link.fd, &p->link.in, flags) < 0) fail("the server hung up on a publisher");
  while (next_frame(&p->link.in, &frame)) {
    no_close(&frame);
    if (frame.kind != METHOD) continue;
    if (frame.method == BASIC_RETURN) p->returned++;
    if (frame.method != BASIC_ACK && frame.method != BASIC_NACK) continue;
    uint64_t before = p->unconfirmed;
    settle_publishes(p, get_64(frame.payload), frame.payload[8] & 1);
    if (frame.method == BASIC_NACK) p->refused += before - p->unconfirmed;
  }
}

static void *publish(void *self) {
  Publisher *p = self;
  pthread_barrier_wait(&go);
  uint64_t began = now_ns();
  while (p->sent < p->count) {
    if (options.window && p->unconfirmed >= options.window) {
      take_confirms(p, 0);
      continue;
    }
    if (options.rate) {
      uint64_t when = began + p->sent * 1000000000u / options.rate;
      struct timespec until = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
      write_message(p);
    } else {
      do write_message(p);
      while (p->sent < p->count && p->link.out.end < SEND_BYTES &&
             (!options.window || p->unconfirmed < options.window));
    }
    transmit(&p->link);
    if (options.window) take_confirms(p, MSG_DONTWAIT);
  }
  while (p->unconfirmed) take_confirms(p, 0);
  p->done_ns = now_ns();
  return NULL;
}

static void publisher_open(Publisher *p, uint32_t index) {
  p->index = index;
  p->first = options.count * index / options.publishers;
  p->count = options.count * (index + 1) / options.publishers - p->first;
  p->low = 1;
  p->confirmed = zeroed(p->count + 2, sizeof *p->confirmed);
  link_open(&p->link);
  if (!options.window) return;
  size_t at = begin_method(&p->link.out, 1, CONFIRM_SELECT);
  put_8(&p->link.out, 0);
  end_frame(&p->link.out, at);
  await(&p->link, CONFIRM_SELECT_OK);
}

/* Consuming */

typedef struct {
  Link link;
  pthread_t thread;
  uint32_t index, queue;
  uint64_t tag, unacked, left, received, strays, doubled, reordered, last_ns;
  uint32_t *waits; /* tenths of a microsecond from send to receipt */
  bool started;
} Consumer;

static uint8_t *seen;       /* [queue][message], a bit each; a queue has one consumer, so no two threads share a row */
static uint64_t *last_seen; /* [queue][publisher]: the last number, plus one */
static size_t row_bytes;
static uint64_t received_all, moved_ns;
static bool ending;

static void check(Consumer *c, const uint8_t *stamp, uint64_t now) {
  uint64_t number = get_64(stamp), publisher = get_64(stamp + 8);
  if (number >= options.count || publisher >= options.publishers ||
      !reaches[number % key_count * options.queues + c->queue]) {
    c->strays++;
    return;
  }
  uint8_t *byte = &seen[c->queue * row_bytes + number / 8], bit = (uint8_t)(1u << number % 8);
  uint64_t *last = &last_seen[c->queue * options.publishers + publisher];
  if (*byte & bit) c->doubled++;
  else if (number < *last) c->reordered++;
  *byte |= bit;
  if (number >= *last) *last = number + 1;
  uint64_t wait = (now - get_64(stamp + 16)) / 100;
  if (options.rate) c->waits[c->received] = wait > UINT32_MAX ? UINT32_MAX : (uint32_t)wait;
  c->received++;
}

static void acknowledge(Consumer *c) {
  if (!options.prefetch || ++c->unacked < options.ack_every) return;
  size_t at = begin_method(&c->link.out, 1, BASIC_ACK);
  put_64(&c->link.out, c->tag);
  put_8(&c->link.out, c->unacked > 1);
  end_frame(&c->link.out, at);
  c->unacked = 0;
}

static void take_delivery(Consumer *c, const Frame *frame, uint64_t now) {
  no_close(frame);
  if (frame->kind == METHOD && frame->method == BASIC_DELIVER) {
    c->queue = (uint32_t)strtoul((const char *)frame->payload + 1, NULL, 10);
    c->tag = get_64(frame->payload + 1 + frame->payload[0]);
  } else if (frame->kind == HEADER) {
    c->left = get_64(frame->payload + 4);
    if (c->left != options.size) fail("a body of %llu bytes came", (unsigned long long)c->left);
  } else if (frame->kind == BODY) {
    if (c->left == options.size) check(c, frame->payload, now);
    c->left -= frame->size;
    if (!c->left) acknowledge(c);
  }
}

static void *consume(void *self) {
  Consumer *c = self;
  Frame frame;
  for (;;) {
    uint64_t before = c->received;
    c->last_ns = now_ns();
    while (next_frame(&c->link.in, &frame)) take_delivery(c, &frame, c->last_ns);
    if (c->link.out.end && !send_all(c->link.fd, c->link.out.data, c->link.out.end)) break;
    c->link.out.end = 0;
    if (c->received != before) {
      __atomic_store_n(&moved_ns, c->last_ns, __ATOMIC_RELAXED);
      __atomic_add_fetch(&received_all, c->received - before, __ATOMIC_RELAXED);
    }
    if (read_more(c->link.fd, &c->link.in, 0) < 0) break;
  }
  if (!__atomic_load_n(&ending, __ATOMIC_RELAXED)) fail("the server hung up on a consumer");
  return NULL;
}

/* A consumer's tag is the number of its queue, ended by a byte that is no digit. */
static void subscribe(Consumer *c) {
  Buffer *out = &c->link.out;
  char name[64], tag[16];
  if (options.prefetch) {
    size_t at = begin_method(out, 1, BASIC_QOS);
    put_32(out, 0);
    put_16(out, (uint16_t)options.prefetch);
    put_8(out, 0);
    end_frame(out, at);
    await(&c->link, BASIC_QOS_OK);
  }
  /* all of them at once, so that nothing that is delivered in between has to be kept */
  for (uint32_t q = c->index; q < options.queues; q += (uint32_t)options.consumers) {
    queue_name(name, sizeof name, q);
    snprintf(tag, sizeof tag, "%u.", q);
    size_t at = begin_method(out, 1, BASIC_CONSUME);
    put_16(out, 0);
    put_short(out, name);
    put_short(out, tag);
    put_8(out, options.prefetch ? 0 : 2);
    put_32(out, 0);
    end_frame(out, at);
  }
  transmit(&c->link);
  c->started = true;
  if (pthread_create(&c->thread, NULL, consume, c)) fail("no thread");
}

/* The run */

static void stage(const char *name) {
  printf("at %s\n", name);
  fflush(stdout);
  if (getchar() == EOF) fail("nobody measures");
}

static uint64_t expected(void) {
  uint64_t all = 0;
  for (uint64_t n = 0; n < options.count; n++)
    for (uint32_t q = 0; q < options.queues; q++) all += reaches[n % key_count * options.queues + q];
  return all;
}

static uint64_t lost(void) {
  uint64_t all = 0;
  for (uint64_t n = 0; n < options.count; n++)
    for (uint32_t q = 0; q < options.queues; q++)
      if (reaches[n % key_count * options.queues + q] && !(seen[q * row_bytes + n / 8] >> n % 8 & 1)) all++;
  return all;
}

static void await_all(uint64_t count) {
  while (__atomic_load_n(&received_all, __ATOMIC_RELAXED) < count) {
    uint64_t moved = __atomic_load_n(&moved_ns, __ATOMIC_RELAXED), now = now_ns();
    if (now > moved && now - moved > options.patience_sec * 1000000000u) return;
    nanosleep(&(struct timespec){0, MS}, NULL);
  }
  nanosleep(&(struct timespec){0, 50 * MS}, NULL); /* the server still takes the last acks */
}

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static void report(Publisher *publishers, Consumer *consumers, uint64_t count, uint64_t began, uint64_t drained_from) {
  uint64_t published = began, ended = began, refused = 0, returned = 0, strays = 0, doubled = 0, reordered = 0;
  for (uint32_t i = 0; i < options.publishers; i++) {
    if (publishers[i].done_ns > published) published = publishers[i].done_ns;
    refused += publishers[i].refused;
    returned += publishers[i].returned;
  }
  for (uint32_t i = 0; i < options.consumers; i++) {
    if (consumers[i].last_ns > ended) ended = consumers[i].last_ns;
    strays += consumers[i].strays;
    doubled += consumers[i].doubled;
    reordered += consumers[i].reordered;
  }
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  printf("{\"messages\":%llu,\"deliveries\":%llu,\"lost\":%llu,\"doubled\":%llu,\"reordered\":%llu,\"strays\":%llu,"
         "\"refused\":%llu,\"returned\":%llu,",
         (unsigned long long)options.count, (unsigned long long)count, (unsigned long long)lost(),
         (unsigned long long)doubled, (unsigned long long)reordered, (unsigned long long)strays,
         (unsigned long long)refused, (unsigned long long)returned);
  if (options.rate) {
    uint64_t n = consumers[0].received;
    uint32_t *waits = consumers[0].waits;
    qsort(waits, n, sizeof *waits, by_size);
    if (n) printf("\"p50_us\":%.1f,\"p99_us\":%.1f,", waits[n / 2] / 10.0, waits[n - 1 - n / 100] / 10.0);
  }
  printf("\"publish_sec\":%.4f,\"drain_sec\":%.4f,\"all_sec\":%.4f,\"client_cpu_sec\":%.4f}\n",
         (double)(published - began) / 1e9, (double)(ended - drained_from) / 1e9, (double)(ended - began) / 1e9, cpu);
}

static void read_options(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    char *value = strchr(argv[i], '=');
    size_t n = 0;
    if (!value) fail("an option is name=number, not %s", argv[i]);
    *value++ = 0;
    while (n < sizeof known / sizeof *known && strcmp(known[n].name, argv[i])) n++;
    if (n == sizeof known / sizeof *known) fail("there is no option %s", argv[i]);
    *known[n].value = strtoull(value, NULL, 10);
  }
  if (options.size < STAMP_BYTES) fail("a body has at least %d bytes", STAMP_BYTES);
  if (!options.publishers || !options.consumers || !options.queues || !options.count) fail("nothing to do");
  if (options.rate && (options.publishers > 1 || options.consumers > 1 || options.queues > 1))
    fail("a rate is for one publisher, one queue, one consumer");
}

int main(int argc, char **argv) {
  read_options(argc, argv);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct rlimit files;
  if (!getrlimit(RLIMIT_NOFILE, &files)) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  plan();
  make_templates();
  row_bytes = options.count / 8 + 1;
  seen = zeroed(options.queues, row_bytes);
  last_seen = zeroed(options.queues * options.publishers, sizeof *last_seen);
  uint64_t count = expected();

  Link control = {0}, *held = zeroed(options.held, sizeof *held);
  link_open(&control);
  declare_all(&control);
  stage("start");
  for (uint64_t i = 0; i < options.held; i++) link_open(&held[i]);
  stage("held");

  Publisher *publishers = zeroed(options.publishers, sizeof *publishers);
  Consumer *consumers = zeroed(options.consumers, sizeof *consumers);
  pthread_barrier_init(&go, NULL, (unsigned)options.publishers + 1);
  for (uint32_t i = 0; i < options.consumers; i++) {
    consumers[i].index = i;
    if (options.rate) consumers[i].waits = zeroed(options.count * 2, sizeof(uint32_t));
    link_open(&consumers[i].link);
    if (!options.backlog) subscribe(&consumers[i]);
  }
  for (uint32_t i = 0; i < options.publishers; i++) {
    publisher_open(&publishers[i], i);
    if (pthread_create(&publishers[i].thread, NULL, publish, &publishers[i])) fail("no thread");
  }
  nanosleep(&(struct timespec){0, 100 * MS}, NULL); /* until the subscriptions are made */
  stage("ready");
  uint64_t began = now_ns(), drained_from = began;
  moved_ns = began;
  pthread_barrier_wait(&go);
  for (uint32_t i = 0; i < options.publishers; i++) pthread_join(publishers[i].thread, NULL);
  if (options.backlog) {
    stage("filled");
    drained_from = moved_ns = now_ns();
    for (uint32_t i = 0; i < options.consumers; i++) subscribe(&consumers[i]);
  }
  await_all(count);
  stage("done");

  __atomic_store_n(&ending, true, __ATOMIC_RELAXED);
  for (uint32_t i = 0; i < options.consumers; i++) {
    shutdown(consumers[i].link.fd, SHUT_RDWR);
    if (consumers[i].started) pthread_join(consumers[i].thread, NULL);
  }
  report(publishers, consumers, count, began, drained_from);
  fflush(stdout);
  for (uint32_t i = 0; i < options.publishers; i++) close(publishers[i].link.fd);
  delete_all(&control);
  return 0;
}
