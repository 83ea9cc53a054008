/* Which routing keys the load generator uses, and which queues each must reach: known here without asking a broker.
 *
 * Through the default exchange a key is a queue's name; a fanout exchange has one key; a topic exchange 512 keys of three
 * words, and patterns whose parts are numbers or "any", so that what they match needs no matcher of topics. Included by
 * amqpload.c behind its options. */
typedef struct {
  int region, device, kind; /* -1: any */
} Pattern;

static char prefix[32];
static uint32_t key_count;
static Pattern *keys, *patterns;
static bool *reaches; /* [key][queue] */

static uint32_t scatter(uint32_t n) { return (n + 1) * 2654435761u >> 8; }

static Pattern key_of(uint32_t n) {
  uint32_t h = scatter(n);
  return (Pattern){(int)(h % 20), (int)(h / 20 % 50), (int)(h / 1000 % 10)};
}

/* Six of ten bindings name one key, two any device of a region, two all of a device. */
static Pattern pattern_of(uint32_t n) {
  Pattern p = key_of(scatter(n) % KEYS);
  if (n / 10 % 5 == 3) p.device = -1;
  if (n / 10 % 5 == 4) p.kind = -1;
  return p;
}

static void word_of(char *text, size_t room, Pattern p) {
  if (p.device < 0) snprintf(text, room, "r%d.*.k%d", p.region, p.kind);
  else if (p.kind < 0) snprintf(text, room, "r%d.d%d.#", p.region, p.device);
  else snprintf(text, room, "r%d.d%d.k%d", p.region, p.device, p.kind);
}

static bool fits(Pattern p, Pattern key) {
  return p.region == key.region && (p.device < 0 || p.device == key.device) && (p.kind < 0 || p.kind == key.kind);
}

static void queue_name(char *text, size_t room, uint32_t queue) { snprintf(text, room, "%s-%u", prefix, queue); }

static void key_name(char *text, size_t room, uint32_t key) {
  if (options.topic) word_of(text, room, keys[key]);
  else queue_name(text, room, key);
}

static void plan(void) {
  snprintf(prefix, sizeof prefix, "load-%d", getpid());
  key_count = options.topic ? KEYS : options.fanout ? 1 : (uint32_t)options.queues;
  reaches = zeroed(key_count * options.queues, sizeof *reaches);
  if (options.topic) {
    keys = zeroed(KEYS, sizeof *keys);
    patterns = zeroed(options.bindings, sizeof *patterns);
    for (uint32_t k = 0; k < KEYS; k++) keys[k] = key_of(k);
    for (uint32_t n = 0; n < options.bindings; n++) patterns[n] = pattern_of(n);
  }
  for (uint32_t k = 0; k < key_count; k++)
    for (uint32_t q = 0; q < options.queues; q++) reaches[k * options.queues + q] = options.fanout || k == q;
  if (options.topic) {
    memset(reaches, 0, key_count * options.queues * sizeof *reaches);
    for (uint32_t k = 0; k < KEYS; k++)
      for (uint32_t n = 0; n < options.bindings; n++)
        if (fits(patterns[n], keys[k])) reaches[k * options.queues + n % options.queues] = true;
  }
}
