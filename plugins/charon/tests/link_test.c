/* SPDX-License-Identifier: MIT */
/* Messages, ledger, link and session against a scripted peer. Needs neither root nor strongSwan. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ledger.h"
#include "session.h"
#include "version.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define SEEN 4096

/* --- the peer -------------------------------------------------------------------------------- */

struct seen {
	uint16_t kind;
	uint64_t incarnation;
	uint32_t spi;
	uint64_t handle;
	/* Of RESUME_SAS: how many it names. */
	size_t handles;
	uint32_t reqid;
	struct lg_address new_destination;
	uint32_t priority;
	int repeat;
	bool has_key;
	uint8_t charon_id[LG_CHARON_ID_BYTES];
};

enum manner {
	ANSWERS,
	SILENT,
	/* Closes without an answer, or after one, at message `at`. */
	CLOSES,
	CLOSES_AFTER,
	/* Refuses to move an SA; to add one; to add a policy. */
	REFUSES_MOVES,
	REFUSES_SAS,
	REFUSES_POLICIES,
	/* Tells 500 events before each answer. */
	FLOODS,
	/* Answers HELLO in version 1; refuses it in version 2. */
	SPEAKS_VERSION_1,
	REFUSES_VERSION_2,
};

struct peer;

/* Appends the fields of a wrong answer. */
typedef void (*spoiler)(struct lg_builder *answer, const struct peer *peer);

struct peer {
	char path[96];
	int listener;
	int connection;
	pthread_t thread;
	pthread_mutex_t lock;
	bool stopping;
	uint64_t incarnation;
	enum manner manner;
	unsigned at;
	uint32_t next_spi;
	uint64_t next_handle;
	/* What it answers to RESUME_SAS: all handles, or that one if it is named. */
	bool lacks_all;
	uint64_t lacks;
	/* Answers requests of that kind so. */
	enum lg_kind spoils;
	spoiler spoiler;
	unsigned count;
	struct seen seen[SEEN];
	/* The last name of a connection. */
	char name[LG_MAX_NAME + 1];
};

static const struct lg_address HERE = { 4, { 10, 0, 0, 1 }, 500 };
static const struct lg_address THERE = { 4, { 10, 0, 0, 2 }, 500 };

/* Handles of rig_with_sas; the reservation had 1. */
#define IN_HANDLE 2
#define OUT_HANDLE 3

/* Appends those of the named handles that the peer lacks. */
static void put_lacking(struct lg_builder *answer, const struct peer *peer,
			const uint64_t *named, size_t count)
{
	uint64_t lacking[LG_MAX_HANDLES];
	size_t lacks = 0;

	for (size_t i = 0; i < count; i++)
		if (peer->lacks_all || named[i] == peer->lacks)
			lacking[lacks++] = named[i];
	if (lacks)
		lg_put_handles(answer, lacking, lacks);
}

static void reply(int to, uint16_t kind, uint32_t number, struct peer *peer, uint16_t status,
		  const uint64_t *named, size_t count)
{
	const uint64_t use[3] = { 3, 300, 7 };
	uint8_t bytes[LG_MAX_MESSAGE];
	struct lg_builder answer;

	lg_begin(&answer, bytes, sizeof(bytes), LG_ANSWER);
	lg_put_u16(&answer, LG_STATUS, status);
	if (status == LG_OTHER_VERSION)
		lg_put(&answer, LG_TEXT, "install another", 15);
	if (peer->spoiler && kind == peer->spoils) {
		peer->spoiler(&answer, peer);
	} else if (status == LG_DONE) {
		if (kind == LG_GET_SPI)
			lg_put_u32(&answer, LG_SPI, ++peer->next_spi);
		if (kind == LG_GET_SPI || kind == LG_ADD_SA)
			lg_put_u64(&answer, LG_HANDLE, ++peer->next_handle);
		if (kind == LG_QUERY_SA || kind == LG_QUERY_POLICY)
			lg_put_u64s(&answer, LG_USE, use);
		if (kind == LG_RESUME_SAS)
			put_lacking(&answer, peer, named, count);
	}
	assert(!answer.failed);
	lg_finish(&answer, number, peer->incarnation);
	if (peer->manner == SPEAKS_VERSION_1)
		bytes[5] = 1;
	send(to, answer.bytes, answer.used, MSG_NOSIGNAL);
}

static void tell(int to, uint64_t incarnation, uint64_t handle)
{
	uint8_t bytes[256];
	struct lg_builder event;

	lg_begin(&event, bytes, sizeof(bytes), LG_EXPIRE);
	lg_put_u64(&event, LG_HANDLE, handle);
	lg_put_u8(&event, LG_HARDNESS, 0);
	lg_finish(&event, 0, incarnation);
	send(to, event.bytes, event.used, MSG_NOSIGNAL);
}

static void tell_acquire(int to, uint64_t incarnation)
{
	const struct lg_selector one = { .last_port = 65535, .length = 4 };
	uint8_t bytes[256];
	struct lg_builder event;

	lg_begin(&event, bytes, sizeof(bytes), LG_ACQUIRE);
	lg_put_u32(&event, LG_REQID, 1);
	lg_put_selector(&event, LG_SOURCE_SELECTOR, &one);
	lg_put_selector(&event, LG_DESTINATION_SELECTOR, &one);
	lg_finish(&event, 0, incarnation);
	send(to, event.bytes, event.used, MSG_NOSIGNAL);
}

static void record(struct peer *peer, const struct lg_view *request, uint64_t *named, size_t *count)
{
	struct seen *seen = &peer->seen[peer->count % SEEN];
	const uint8_t *value;
	uint8_t repeat;
	size_t length;

	*seen = (struct seen){
		.kind = request->kind,
		.incarnation = peer->incarnation,
		.repeat = lg_read_u8(request, LG_REPEAT, &repeat) ? repeat : -1,
		.has_key = lg_find(request, LG_KEY, &length),
	};
	lg_read_u32(request, LG_SPI, &seen->spi);
	lg_read_u32(request, LG_REQID, &seen->reqid);
	lg_read_u32(request, LG_PRIORITY, &seen->priority);
	lg_read_u64(request, LG_HANDLE, &seen->handle);
	lg_read_address(request, LG_NEW_DESTINATION, &seen->new_destination);
	value = lg_find(request, LG_IKE, &length);
	if (value && length < sizeof(peer->name)) {
		memset(peer->name, 0, sizeof(peer->name));
		memcpy(peer->name, value, length);
	}
	value = lg_find(request, LG_CHARON_ID, &length);
	assert(!value == (request->kind != LG_HELLO));
	if (value) {
		assert(length == LG_CHARON_ID_BYTES);
		memcpy(seen->charon_id, value, length);
	}
	value = lg_find(request, LG_HANDLES, &length);
	assert(!value == (request->kind != LG_RESUME_SAS));
	if (value) {
		assert(length && length % 8 == 0 && length <= 8 * LG_MAX_HANDLES);
		*count = seen->handles = length / 8;
		for (size_t i = 0; i < *count; i++)
			named[i] = lg_decode_u64(value + 8 * i);
	}
	peer->count++;
}

/* Records a request, wipes and answers it; false ends the connection. Called with the lock held. */
static bool handle(struct peer *peer, int connection, const struct lg_view *request)
{
	uint64_t named[LG_MAX_HANDLES];
	uint16_t status = LG_DONE;
	size_t count = 0;

	record(peer, request, named, &count);
	explicit_bzero((void *)request->fields, request->length);
	assert(request->incarnation == (request->kind == LG_HELLO ? 0 : peer->incarnation));
	if (peer->manner == SILENT)
		return true;
	if (peer->manner == CLOSES && peer->count >= peer->at)
		return false;
	if ((peer->manner == REFUSES_MOVES && request->kind == LG_UPDATE_SA) ||
	    (peer->manner == REFUSES_SAS && request->kind == LG_ADD_SA) ||
	    (peer->manner == REFUSES_POLICIES && request->kind == LG_ADD_POLICY))
		status = LG_REFUSED;
	if (peer->manner == REFUSES_VERSION_2)
		status = LG_OTHER_VERSION;
	for (int i = 0; peer->manner == FLOODS && request->kind != LG_HELLO && i < 500; i++)
		tell(connection, peer->incarnation, IN_HANDLE);
	reply(connection, request->kind, request->number, peer, status, named, count);
	return !(peer->manner == CLOSES_AFTER && peer->count >= peer->at);
}

static void *serve(void *given)
{
	struct peer *peer = given;
	uint8_t bytes[LG_MAX_MESSAGE + 1];

	while (!__atomic_load_n(&peer->stopping, __ATOMIC_SEQ_CST)) {
		struct pollfd ready[2] = {
			{ .fd = peer->listener, .events = POLLIN },
			{ .fd = peer->connection, .events = POLLIN },
		};
		struct lg_view request;
		ssize_t length;
		bool go_on;

		if (poll(ready, 2, 20) <= 0)
			continue;
		if (ready[0].revents && peer->connection < 0)
			peer->connection = accept(peer->listener, NULL, NULL);
		if (!ready[1].revents || peer->connection < 0)
			continue;
		length = recv(peer->connection, bytes, sizeof(bytes), 0);
		pthread_mutex_lock(&peer->lock);
		go_on = length > 0;
		if (go_on) {
			assert(lg_parse(&request, bytes, length) == LG_PARSED);
			go_on = handle(peer, peer->connection, &request);
		}
		pthread_mutex_unlock(&peer->lock);
		explicit_bzero(bytes, sizeof(bytes));
		if (!go_on) {
			close(peer->connection);
			peer->connection = -1;
		}
	}
	return NULL;
}

static void peer_start(struct peer *peer, uint64_t incarnation)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	peer->stopping = false;
	peer->incarnation = incarnation;
	peer->connection = -1;
	unlink(peer->path);
	strcpy(address.sun_path, peer->path);
	peer->listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert(peer->listener >= 0);
	assert(bind(peer->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	assert(listen(peer->listener, 4) == 0);
	assert(pthread_create(&peer->thread, NULL, serve, peer) == 0);
}

static void peer_stop(struct peer *peer)
{
	__atomic_store_n(&peer->stopping, true, __ATOMIC_SEQ_CST);
	pthread_join(peer->thread, NULL);
	close(peer->listener);
	if (peer->connection >= 0)
		close(peer->connection);
	unlink(peer->path);
}

static unsigned peer_count(struct peer *peer)
{
	unsigned count;

	pthread_mutex_lock(&peer->lock);
	count = peer->count;
	pthread_mutex_unlock(&peer->lock);
	return count;
}

static void peer_manner(struct peer *peer, enum manner manner, unsigned at)
{
	pthread_mutex_lock(&peer->lock);
	peer->manner = manner;
	peer->at = peer->count + at;
	pthread_mutex_unlock(&peer->lock);
}

static void peer_spoil(struct peer *peer, enum lg_kind kind, spoiler how)
{
	pthread_mutex_lock(&peer->lock);
	peer->spoils = kind;
	peer->spoiler = how;
	pthread_mutex_unlock(&peer->lock);
}

/* --- the rig --------------------------------------------------------------------------------- */

struct rig {
	struct peer peer;
	struct lg_session *session;
	pthread_mutex_t lock;
	unsigned soft;
	unsigned hard;
	uint32_t last_spi;
	uint32_t last_delay_ms;
	/* SPIs of the last hard expiries. */
	uint32_t ended[64];
	unsigned logged;
	char said[1024];
	char folder[64];
};

static void on_event(void *owner, const struct lg_event *event)
{
	struct rig *rig = owner;

	pthread_mutex_lock(&rig->lock);
	if (event->hard)
		rig->ended[rig->hard++ % 64] = event->spi;
	else
		rig->soft++;
	rig->last_spi = event->spi;
	rig->last_delay_ms = event->delay_ms;
	pthread_mutex_unlock(&rig->lock);
}

static void on_log(void *owner, const char *text)
{
	struct rig *rig = owner;

	pthread_mutex_lock(&rig->lock);
	rig->logged++;
	snprintf(rig->said, sizeof(rig->said), "%s", text);
	pthread_mutex_unlock(&rig->lock);
	if (getenv("LOG"))
		printf("    %s\n", text);
}

static struct rig *rig_create(uid_t user)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct lg_link_settings settings = {
		.path = rig->peer.path, .peer = user, .charon = "5.9.8", .plugin = "test",
	};
	struct lg_session_calls calls = { .owner = rig, .event = on_event, .log = on_log };

	strcpy(rig->folder, "/tmp/lockgate-link-XXXXXX");
	assert(mkdtemp(rig->folder));
	snprintf(rig->peer.path, sizeof(rig->peer.path), "%s/socket", rig->folder);
	pthread_mutex_init(&rig->lock, NULL);
	pthread_mutex_init(&rig->peer.lock, NULL);
	rig->session = lg_session_create(&settings, &calls);
	assert(rig->session);
	return rig;
}

static void rig_destroy(struct rig *rig)
{
	lg_session_destroy(rig->session);
	rmdir(rig->folder);
	free(rig);
}

static unsigned rig_soft(struct rig *rig)
{
	unsigned count;

	pthread_mutex_lock(&rig->lock);
	count = rig->soft;
	pthread_mutex_unlock(&rig->lock);
	return count;
}

static unsigned rig_hard(struct rig *rig)
{
	unsigned count;

	pthread_mutex_lock(&rig->lock);
	count = rig->hard;
	pthread_mutex_unlock(&rig->lock);
	return count;
}

static bool rig_said(struct rig *rig, const char *text, unsigned *logged)
{
	bool said;

	pthread_mutex_lock(&rig->lock);
	said = strstr(rig->said, text);
	*logged = rig->logged;
	pthread_mutex_unlock(&rig->lock);
	return said;
}

/* How often charon was told that an SA ended. */
static unsigned ends_of(struct rig *rig, uint32_t spi)
{
	unsigned count = 0;

	pthread_mutex_lock(&rig->lock);
	for (unsigned i = 0; i < rig->hard && i < 64; i++)
		count += rig->ended[i] == spi;
	pthread_mutex_unlock(&rig->lock);
	return count;
}

#define WAIT(condition, ms)                                        \
	do {                                                       \
		int64_t until = lg_now() + (ms);                   \
		while (!(condition) && lg_now() < until)           \
			usleep(2000);                              \
		assert(condition);                                 \
	} while (0)

/* The test's keys are made when they are used, so that they are nowhere else. */
static void make_key(uint8_t key[36], uint32_t spi)
{
	for (int i = 0; i < 36; i++)
		key[i] = (uint8_t)(spi * 37 + i * 101 + 13) ^ 0x5a;
}

static enum lg_result add_sa(struct rig *rig, uint32_t spi, enum lg_direction direction)
{
	const struct lg_selector all = { .last_port = 65535, .length = 4, .last = { 255, 255, 255,
										    255 } };
	struct lg_sa_id id = { THERE, HERE, spi };
	uint8_t bytes[LG_MAX_MESSAGE], key[36];
	struct lg_keys keys = { .key = key, .key_length = sizeof(key) };
	struct lg_builder fields;
	enum lg_result result;

	if (direction == LG_OUTBOUND)
		id = (struct lg_sa_id){ HERE, THERE, spi };
	lg_begin(&fields, bytes, sizeof(bytes), LG_ADD_SA);
	lg_put_u8(&fields, LG_DIRECTION, direction);
	lg_put_address(&fields, LG_SOURCE, &id.source);
	lg_put_address(&fields, LG_DESTINATION, &id.destination);
	lg_put_u32(&fields, LG_SPI, spi);
	lg_put_u32(&fields, LG_REQID, 1);
	lg_put_u8(&fields, LG_ENCAPSULATION, 0);
	lg_put_selector(&fields, LG_SOURCE_SELECTOR, &all);
	lg_put_selector(&fields, LG_DESTINATION_SELECTOR, &all);
	make_key(key, spi);
	result = lg_session_add_sa(rig->session, &id, direction, &fields, &keys);
	explicit_bzero(key, sizeof(key));
	return result;
}

static void policy_fields(struct lg_builder *fields, uint8_t *bytes, size_t room, uint32_t spi,
			  uint32_t priority, const struct lg_address *to)
{
	lg_begin(fields, bytes, room, LG_ADD_POLICY);
	lg_put_u8(fields, LG_DIRECTION, LG_OUTBOUND);
	lg_put_address(fields, LG_DESTINATION, to);
	lg_put_u32(fields, LG_SPI, spi);
	lg_put_u32(fields, LG_PRIORITY, priority);
}

static enum lg_result add_policy_to(struct rig *rig, uint32_t spi, uint32_t priority,
				    const struct lg_address *to)
{
	uint8_t bytes[256];
	struct lg_builder fields;

	policy_fields(&fields, bytes, sizeof(bytes), spi, priority, to);
	return lg_session_add_policy(rig->session, &fields);
}

static enum lg_result add_policy(struct rig *rig, uint32_t spi, uint32_t priority)
{
	return add_policy_to(rig, spi, priority, &THERE);
}

static enum lg_result delete_policy(struct rig *rig, uint32_t spi, uint32_t priority)
{
	uint8_t bytes[256];
	struct lg_builder fields;

	policy_fields(&fields, bytes, sizeof(bytes), spi, priority, &THERE);
	return lg_session_delete_policy(rig->session, &fields);
}

static enum lg_result take_spi(struct rig *rig, uint32_t *spi)
{
	return lg_session_spi(rig->session, &THERE, &HERE, spi);
}

/* --- messages -------------------------------------------------------------------------------- */

static void a_message_reads_back(void)
{
	const struct lg_selector selector = { 6, 80, 90, 16, { 0x20, 1 }, { 0x20, 2 } };
	const struct lg_address six = { 16, { 0x20, 1, 13, 0xb8 }, 4500 };
	struct lg_selector selector_back;
	struct lg_address back;
	uint8_t bytes[LG_MAX_MESSAGE], filler[LG_MAX_MESSAGE];
	struct lg_builder to;
	struct lg_view view;
	uint32_t number;
	uint64_t handle;

	lg_begin(&to, bytes, sizeof(bytes), LG_MAPPING);
	lg_put_u32(&to, LG_SPI, 0xc0000001);
	lg_put_address(&to, LG_DESTINATION, &six);
	lg_put_selector(&to, LG_SOURCE_SELECTOR, &selector);
	lg_put_u64(&to, LG_HANDLE, 0x8877665544332211u);
	lg_finish(&to, 9, 0x1122334455667788u);
	assert(!to.failed && to.used == 24 + 8 + 22 + 42 + 12);
	assert(lg_parse(&view, bytes, to.used) == LG_PARSED);
	assert(view.kind == LG_MAPPING && view.number == 9);
	assert(view.incarnation == 0x1122334455667788u);
	assert(lg_read_u32(&view, LG_SPI, &number) && number == 0xc0000001);
	assert(lg_read_u64(&view, LG_HANDLE, &handle) && handle == 0x8877665544332211u);
	assert(lg_read_address(&view, LG_DESTINATION, &back));
	assert(lg_same_host(&back, &six) && back.port == 4500);
	assert(lg_read_selector(&view, LG_SOURCE_SELECTOR, &selector_back));
	assert(memcmp(&selector, &selector_back, sizeof(selector)) == 0);
	assert(!lg_read_u32(&view, LG_REQID, &number) && !lg_read_u32(&view, LG_DESTINATION, &number));
	assert(lg_has_just(&view, LG_FIELD(LG_SPI),
			   LG_FIELD(LG_DESTINATION) | LG_FIELD(LG_SOURCE_SELECTOR) |
				   LG_FIELD(LG_HANDLE)));
	assert(!lg_has_just(&view, LG_FIELD(LG_SPI),
			    LG_FIELD(LG_DESTINATION) | LG_FIELD(LG_SOURCE_SELECTOR)));
	for (size_t length = 0; length < to.used; length++)
		assert(lg_parse(&view, bytes, length) == LG_PARSED_WRONG);
	memset(filler, 0, sizeof(filler));
	lg_put(&to, LG_TEXT, filler, LG_MAX_MESSAGE - to.used - 4);
	assert(!to.failed && to.used == LG_MAX_MESSAGE);
	lg_put(&to, LG_TEXT, NULL, 0);
	assert(to.failed);
}

static void any_bytes_are_read_without_harm(void)
{
	unsigned seed = 1;

	for (int round = 0; round < 100000; round++) {
		size_t length = 24 + rand_r(&seed) % 64;
		/* On the heap, so that a read beyond the end is caught. */
		uint8_t *bytes = malloc(length);
		struct lg_selector selector;
		struct lg_address address;
		struct lg_builder head;
		struct lg_view view;
		uint64_t use[3];

		lg_begin(&head, bytes, length, LG_ANSWER);
		for (size_t i = 24; i < length; i++)
			bytes[i] = rand_r(&seed) % 4 ? rand_r(&seed) % 32 : rand_r(&seed);
		head.used = length;
		lg_finish(&head, 1, 1);
		if (round % 4 == 0)
			bytes[rand_r(&seed) % 24] ^= 1 << rand_r(&seed) % 8;
		if (lg_parse(&view, bytes, length) == LG_PARSED) {
			lg_has_just(&view, LG_FIELD(LG_STATUS), ~0ull);
			lg_read_u64s(&view, LG_USE, use);
			lg_read_selector(&view, LG_SOURCE_SELECTOR, &selector);
			lg_read_address(&view, LG_DESTINATION, &address);
		}
		free(bytes);
	}
}

static void a_version_is_found_whole(void)
{
	static const char text[] = "\0Starting (strongSwan 5.9.8, %s)\0" "5.9.10\0" "15.9.1\0";

	assert(lg_contains_version(text, sizeof(text), "5.9.8"));
	assert(lg_contains_version(text, sizeof(text), "5.9.10"));
	assert(!lg_contains_version(text, sizeof(text), "5.9.1"));
	assert(!lg_contains_version(text, sizeof(text), "5.9"));
	assert(!lg_contains_version(text, sizeof(text), "6.0.1"));
	/* This program, whose strings are read-only too. The sanitizer forbids reading them across. */
	if (!SANITIZED)
		assert(lg_program_contains_version("15.9.1"));
}

/* --- ledger ---------------------------------------------------------------------------------- */

static void the_ledger_finds_and_forgets(void)
{
	struct lg_ledger *ledger = lg_ledger_create();
	struct lg_entry *entries[1000], *at;
	uint8_t fields[4] = { 0 };
	size_t count = 0;

	for (uint32_t i = 0; i < 1000; i++) {
		fields[0] = i;
		fields[1] = i >> 8;
		entries[i] = lg_ledger_new(i % 2 ? LG_ENTRY_POLICY : LG_ENTRY_SA, fields, 4);
		entries[i]->spi = i;
		entries[i]->handle = i % 2 ? 0 : (uint64_t)i << 40 | 1;
		entries[i]->destination = i % 4 ? HERE : THERE;
		lg_ledger_keep(ledger, entries[i]);
	}
	assert(lg_ledger_count(ledger, LG_ENTRY_SA) == 500);
	assert(lg_ledger_sa(ledger, 4, &THERE) == entries[4]);
	assert(!lg_ledger_sa(ledger, 4, &HERE) && !lg_ledger_sa(ledger, 5, &HERE));
	assert(lg_ledger_handle(ledger, (uint64_t)4 << 40 | 1) == entries[4]);
	assert(!lg_ledger_handle(ledger, 4) && !lg_ledger_handle(ledger, 0));
	fields[0] = 5;
	fields[1] = 0;
	assert(lg_ledger_policy(ledger, fields, 4) == entries[5]);
	assert(!lg_ledger_policy(ledger, fields, 3));
	for (at = lg_ledger_first(ledger); at; at = at->next)
		assert(at == entries[count++]);
	assert(count == 1000);
	/* One that is gone keeps its place and its SPI, and has no handle. */
	lg_ledger_forget(ledger, entries[4]);
	assert(lg_ledger_count(ledger, LG_ENTRY_SA) == 499);
	assert(lg_ledger_count(ledger, LG_ENTRY_GONE) == 1);
	assert(lg_ledger_sa(ledger, 4, &THERE) == entries[4] && entries[3]->next == entries[4]);
	assert(!lg_ledger_handle(ledger, (uint64_t)4 << 40 | 1));
	for (uint32_t i = 0; i < 1000; i += 2)
		lg_ledger_drop(ledger, entries[i]);
	assert(lg_ledger_count(ledger, LG_ENTRY_SA) == 0 && lg_ledger_first(ledger) == entries[1]);
	assert(lg_ledger_count(ledger, LG_ENTRY_GONE) == 0);
	lg_ledger_destroy(ledger);
}

static struct lg_entry *keep_sa(struct lg_ledger *ledger, enum lg_direction direction,
				uint32_t reqid, uint8_t peer)
{
	struct lg_entry *entry = lg_ledger_new(LG_ENTRY_SA, NULL, 0);
	struct lg_address there = THERE;
	static uint64_t handle;

	there.bytes[3] = peer;
	/* Ports do not count: they differ behind a NAT. */
	there.port = (uint16_t)++handle;
	entry->handle = handle;
	entry->direction = direction;
	entry->reqid = reqid;
	entry->source = direction == LG_INBOUND ? there : HERE;
	entry->destination = direction == LG_INBOUND ? HERE : there;
	lg_ledger_keep(ledger, entry);
	return entry;
}

static bool are_partners(const struct lg_entry *a, const struct lg_entry *b)
{
	return a->partner == b && b->partner == a;
}

static void sas_of_a_child_become_partners(void)
{
	struct lg_ledger *ledger = lg_ledger_create();
	struct lg_entry *in[4], *out[4];

	/* Two children of one reqid with another peer, and another child, in between. */
	in[0] = keep_sa(ledger, LG_INBOUND, 1, 2);
	in[1] = keep_sa(ledger, LG_INBOUND, 1, 3);
	in[2] = keep_sa(ledger, LG_INBOUND, 2, 2);
	out[1] = keep_sa(ledger, LG_OUTBOUND, 1, 3);
	out[0] = keep_sa(ledger, LG_OUTBOUND, 1, 2);
	out[2] = keep_sa(ledger, LG_OUTBOUND, 2, 2);
	for (int i = 0; i < 3; i++)
		assert(are_partners(in[i], out[i]));
	/* A rekeying: the old pair stays a pair beside the new one. */
	in[3] = keep_sa(ledger, LG_INBOUND, 1, 2);
	assert(!in[3]->partner && are_partners(in[0], out[0]));
	out[3] = keep_sa(ledger, LG_OUTBOUND, 1, 2);
	assert(are_partners(in[3], out[3]) && are_partners(in[0], out[0]));
	/* One whose partner is gone never gets another: its child is the old one. */
	lg_ledger_drop(ledger, out[0]);
	assert(!in[0]->partner);
	out[0] = keep_sa(ledger, LG_OUTBOUND, 1, 2);
	assert(!out[0]->partner && !in[0]->partner);
	lg_ledger_forget(ledger, out[0]);
	in[0] = keep_sa(ledger, LG_INBOUND, 1, 2);
	assert(!in[0]->partner && !out[0]->partner);
	lg_ledger_destroy(ledger);
}

/* --- session --------------------------------------------------------------------------------- */

static const struct seen *last_seen(struct rig *rig)
{
	return &rig->peer.seen[(peer_count(&rig->peer) - 1) % SEEN];
}

static void calls_reach_the_peer_and_the_ledger(void)
{
	struct rig *rig = rig_create(getuid());
	struct lg_sa_id in = { THERE, HERE, 0 };
	struct lg_move move = { .source = THERE, .destination = { 4, { 10, 0, 0, 9 }, 500 } };
	struct lg_use use;

	/* Nobody there: calls fail at once. */
	assert(take_spi(rig, &in.spi) == LG_RESULT_DOWN);
	assert(add_sa(rig, 1, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(add_policy(rig, 1, 1) == LG_RESULT_DOWN);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	peer_start(&rig->peer, 7);
	/* The next call connects by itself. */
	assert(take_spi(rig, &in.spi) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 1);
	assert(add_sa(rig, in.spi, LG_INBOUND) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 0);
	assert(add_sa(rig, 0xabc, LG_OUTBOUND) == LG_RESULT_DONE);
	assert(add_policy(rig, 0xabc, 1) == LG_RESULT_DONE);
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE);
	assert(use.packets == 3 && use.bytes == 300 && use.idle == 7);
	assert(lg_session_name_sa(rig->session, &in, "gw\x01\xff" "b", "") == LG_RESULT_DONE);
	assert(rig->peer.seen[peer_count(&rig->peer) - 1].kind == LG_NAME_SA);
	assert(strcmp(rig->peer.name, "gw??b") == 0);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_DONE);
	assert(lg_session_name_sa(rig->session, &in, "a", "b") == LG_RESULT_UNKNOWN);
	/* It is known by its new address alone. */
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_UNKNOWN);
	in.destination = move.destination;
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE);
	assert(last_seen(rig)->handle == IN_HANDLE);
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(last_seen(rig)->kind == LG_DELETE_SA && last_seen(rig)->handle == IN_HANDLE);
	/* An SPI that charon does not use. */
	in.destination = HERE;
	assert(take_spi(rig, &in.spi) == LG_RESULT_DONE);
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(last_seen(rig)->kind == LG_DELETE_SA && last_seen(rig)->handle == 4);
	assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 0);
	assert(delete_policy(rig, 0xabc, 2) == LG_RESULT_UNKNOWN);
	assert(delete_policy(rig, 0xabc, 1) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 1);
	assert(lg_session_flush_sas(rig->session) == LG_RESULT_DONE);
	assert(lg_session_flush_policies(rig->session) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	assert(rig->peer.seen[peer_count(&rig->peer) - 2].kind == LG_FLUSH_SAS);
	assert(rig->peer.seen[peer_count(&rig->peer) - 1].kind == LG_FLUSH_POLICIES);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* Connected, with an SA each way, a policy of theirs and a trap. */
static struct rig *rig_with_sas(void)
{
	struct rig *rig = rig_create(getuid());
	uint32_t spi;

	peer_start(&rig->peer, 7);
	assert(take_spi(rig, &spi) == LG_RESULT_DONE && spi == 1);
	assert(add_sa(rig, spi, LG_INBOUND) == LG_RESULT_DONE);
	assert(add_sa(rig, 0xabc, LG_OUTBOUND) == LG_RESULT_DONE);
	assert(add_policy(rig, 0xabc, 1) == LG_RESULT_DONE);
	assert(add_policy(rig, 0, 2) == LG_RESULT_DONE);
	return rig;
}

/* Stops the peer, and starts it as an incarnation. Returns the number of requests before. */
static unsigned restart(struct rig *rig, uint64_t incarnation)
{
	peer_stop(&rig->peer);
	peer_start(&rig->peer, incarnation);
	return peer_count(&rig->peer);
}

/* Waits until that many requests came, and they are of these kinds. */
static void expect_kinds(struct rig *rig, unsigned before, const uint16_t *kinds, unsigned count)
{
	/* The link comes back by its timer, without a call. */
	WAIT(peer_count(&rig->peer) >= before + count, 6000);
	assert(peer_count(&rig->peer) == before + count);
	for (unsigned i = 0; i < count; i++)
		assert(rig->peer.seen[(before + i) % SEEN].kind == kinds[i]);
}

#define EXPECT_KINDS(rig, before, ...)                                              \
	do {                                                                        \
		static const uint16_t kinds[] = { __VA_ARGS__ };                    \
		expect_kinds(rig, before, kinds, sizeof(kinds) / sizeof(kinds[0])); \
	} while (0)

static void the_same_incarnation_gets_handles_and_policies(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 };
	unsigned before = restart(rig, 7);
	struct lg_use use;

	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	for (int i = 0; i < 5; i++) {
		const struct seen *seen = &rig->peer.seen[before + i];

		assert(seen->repeat == (seen->kind == LG_ADD_POLICY ? 1 : -1));
		assert(!seen->has_key);
	}
	assert(rig->peer.seen[before + 1].handles == 2);
	/* One charon has one number, over all its connections. */
	assert(memcmp(rig->peer.seen[0].charon_id, rig->peer.seen[before].charon_id,
		      LG_CHARON_ID_BYTES) == 0);
	assert(rig_soft(rig) == 0 && rig_hard(rig) == 0);
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void each_charon_has_another_number(void)
{
	struct rig *rigs[2];
	uint32_t spi;

	for (int i = 0; i < 2; i++) {
		rigs[i] = rig_create(getuid());
		peer_start(&rigs[i]->peer, 7);
		assert(take_spi(rigs[i], &spi) == LG_RESULT_DONE);
	}
	assert(memcmp(rigs[0]->peer.seen[0].charon_id, rigs[1]->peer.seen[0].charon_id,
		      LG_CHARON_ID_BYTES) != 0);
	for (int i = 0; i < 2; i++) {
		peer_stop(&rigs[i]->peer);
		rig_destroy(rigs[i]);
	}
}

/* A name that did not arrive is told at the next connection, and once; none without an SA. */
static void names_that_were_lost_come_with_the_next_connection(void)
{
	const struct lg_sa_id in = { THERE, HERE, 1 }, none = { THERE, HERE, 0xdef };
	struct rig *rig = rig_with_sas();
	unsigned before;

	peer_manner(&rig->peer, CLOSES, 1);
	assert(lg_session_name_sa(rig->session, &in, "gw", "net") == LG_RESULT_DOWN);
	assert(lg_session_name_sa(rig->session, &none, "gw", "net") == LG_RESULT_UNKNOWN);
	peer_manner(&rig->peer, ANSWERS, 0);
	rig->peer.name[0] = '\0';
	before = restart(rig, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_NAME_SA, LG_ADD_POLICY, LG_ADD_POLICY,
		     LG_RESUMED);
	assert(rig->peer.seen[before + 2].handle == IN_HANDLE);
	assert(rig->peer.seen[before + 2].reqid == 1);
	assert(strcmp(rig->peer.name, "gw") == 0);
	before = restart(rig, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	/* One that is told while nobody is there comes too. */
	peer_stop(&rig->peer);
	assert(lg_session_name_sa(rig->session, &in, "other", "net") == LG_RESULT_DOWN);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) == before + 6, 2500);
	assert(strcmp(rig->peer.name, "other") == 0);
	/* Another incarnation that lacks the SA hears no name. */
	peer_stop(&rig->peer);
	assert(lg_session_name_sa(rig->session, &in, "gw", "net") == LG_RESULT_DOWN);
	rig->peer.lacks_all = true;
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 8);
	WAIT(peer_count(&rig->peer) == before + 5, 2500);
	assert(lg_session_name_sa(rig->session, &in, "gw", "net") == LG_RESULT_UNKNOWN);
	for (unsigned i = before; i < peer_count(&rig->peer); i++)
		assert(rig->peer.seen[i].kind != LG_NAME_SA);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* Counts where the key of an SA lies in the memory of this process. */
static unsigned copies_of_key(uint32_t spi)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	unsigned found = 0;
	char line[512], mode[8];

	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || mode[0] != 'r' ||
		    mode[1] != 'w')
			continue;
		for (const uint8_t *at = (void *)from; at + 36 <= (const uint8_t *)to; at++) {
			int i = 0;

			while (i < 36 && at[i] == ((uint8_t)(spi * 37 + i * 101 + 13) ^ 0x5a))
				i++;
			found += i == 36;
		}
	}
	fclose(maps);
	return found;
}

static void put_no_handle(struct lg_builder *answer, const struct peer *peer)
{
	(void)answer;
	(void)peer;
}

static void no_key_stays_whatever_the_answer(void)
{
	struct rig *rig = rig_with_sas();
	uint8_t key[36];

	if (SANITIZED)
		return peer_stop(&rig->peer), rig_destroy(rig);
	/* The search finds a key. */
	make_key(key, 0xdef);
	assert(copies_of_key(0xdef) >= 1);
	explicit_bzero(key, sizeof(key));
	assert(copies_of_key(1) == 0 && copies_of_key(0xabc) == 0);
	peer_manner(&rig->peer, REFUSES_SAS, 0);
	assert(add_sa(rig, 0xd00, LG_OUTBOUND) == LG_RESULT_REFUSED);
	assert(copies_of_key(0xd00) == 0);
	peer_manner(&rig->peer, ANSWERS, 0);
	peer_spoil(&rig->peer, LG_ADD_SA, put_no_handle);
	assert(add_sa(rig, 0xd01, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(copies_of_key(0xd01) == 0);
	/* Nobody is asked in the second after that. */
	assert(add_sa(rig, 0xd02, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(copies_of_key(0xd02) == 0);
	WAIT(last_seen(rig)->kind == LG_RESUMED, 6000);
	peer_manner(&rig->peer, CLOSES, 1);
	assert(add_sa(rig, 0xd03, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(copies_of_key(0xd03) == 0);
	peer_manner(&rig->peer, ANSWERS, 0);
	WAIT(last_seen(rig)->kind == LG_RESUMED, 6000);
	peer_manner(&rig->peer, SILENT, 0);
	assert(add_sa(rig, 0xd04, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(copies_of_key(0xd04) == 0);
	peer_stop(&rig->peer);
	assert(add_sa(rig, 0xd05, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(copies_of_key(0xd05) == 0);
	rig_destroy(rig);
}

static void a_new_incarnation_lacks_all_and_both_directions_end_once(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 }, out = { HERE, THERE, 0xabc };
	struct lg_move move = { .source = THERE, .destination = { 4, { 10, 0, 0, 9 }, 500 } };
	struct lg_use use;
	unsigned before;
	uint32_t spi;

	/* A reservation that the new incarnation lacks is forgotten without a word to charon. */
	assert(take_spi(rig, &spi) == LG_RESULT_DONE && spi == 2);
	rig->peer.lacks_all = true;
	before = restart(rig, 8);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	assert(rig->peer.seen[before + 1].handles == 3);
	assert(rig->peer.seen[before + 2].repeat == 0 && rig->peer.seen[before + 3].repeat == 0);
	assert(rig_soft(rig) == 0 && rig_hard(rig) == 2);
	assert(ends_of(rig, 1) == 1 && ends_of(rig, 0xabc) == 1);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 0);
	/* Of the old ones the new incarnation is not asked. */
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_UNKNOWN);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_UNKNOWN);
	/* A number that charon still has is given back, and another one taken. */
	in.destination = move.destination;
	rig->peer.next_spi = 0xabb;
	before = peer_count(&rig->peer);
	assert(lg_session_spi(rig->session, &HERE, &THERE, &spi) == LG_RESULT_DONE && spi == 0xabd);
	EXPECT_KINDS(rig, before, LG_GET_SPI, LG_DELETE_SA, LG_GET_SPI);
	/* When charon deletes them that is all. */
	before = peer_count(&rig->peer);
	assert(lg_session_count(rig->session, LG_ENTRY_GONE) == 2);
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(lg_session_delete_sa(rig->session, &out) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_GONE) == 0);
	assert(peer_count(&rig->peer) == before);
	/* Another connection has nothing more to say about them. */
	before = restart(rig, 8);
	WAIT(last_seen(rig)->kind == LG_RESUMED, 6000);
	assert(rig_hard(rig) == 2 && rig->peer.seen[before + 1].handles == 1);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* Of two children of one reqid, as after a rekeying, one ends and the other stays. */
static void a_lacking_sa_takes_its_partner_along_and_no_other(void)
{
	for (int lacks_out = 0; lacks_out < 2; lacks_out++) {
		struct rig *rig = rig_with_sas();
		struct lg_sa_id in = { THERE, HERE, 2 };
		struct lg_use use;
		unsigned before;
		uint32_t spi;

		assert(take_spi(rig, &spi) == LG_RESULT_DONE && spi == 2);
		assert(add_sa(rig, 2, LG_INBOUND) == LG_RESULT_DONE);
		assert(add_sa(rig, 0xabd, LG_OUTBOUND) == LG_RESULT_DONE);
		rig->peer.lacks = lacks_out ? OUT_HANDLE : IN_HANDLE;
		before = restart(rig, 7);
		EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_DELETE_SA, LG_ADD_POLICY,
			     LG_ADD_POLICY, LG_RESUMED);
		assert(rig->peer.seen[before + 2].handle == (lacks_out ? IN_HANDLE : OUT_HANDLE));
		/* The policy of an SA that is gone claims nothing; the trap is repeated. */
		assert(rig->peer.seen[before + 3].repeat == 0);
		assert(rig->peer.seen[before + 4].repeat == 1);
		assert(rig_hard(rig) == 2 && ends_of(rig, 1) == 1 && ends_of(rig, 0xabc) == 1);
		assert(lg_session_count(rig->session, LG_ENTRY_SA) == 2);
		assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE);
		peer_stop(&rig->peer);
		rig_destroy(rig);
	}
}

static void put_seven_bytes(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put(answer, LG_HANDLES, "1234567", 7);
}

static void put_empty_handles(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put(answer, LG_HANDLES, NULL, 0);
}

static void put_three_handles(struct lg_builder *answer, const struct peer *peer)
{
	const uint64_t handles[] = { IN_HANDLE, OUT_HANDLE, OUT_HANDLE + 1 };

	(void)peer;
	lg_put_handles(answer, handles, 3);
}

static void put_a_handle_twice(struct lg_builder *answer, const struct peer *peer)
{
	const uint64_t handles[] = { IN_HANDLE, IN_HANDLE };

	(void)peer;
	lg_put_handles(answer, handles, 2);
}

static void put_another_handle(struct lg_builder *answer, const struct peer *peer)
{
	const uint64_t handles[] = { (uint64_t)IN_HANDLE << 32 };

	(void)peer;
	lg_put_handles(answer, handles, 1);
}

static void put_a_handle_of_zero(struct lg_builder *answer, const struct peer *peer)
{
	const uint64_t handles[] = { IN_HANDLE, 0 };

	(void)peer;
	lg_put_handles(answer, handles, 2);
}

static void put_1001_handles(struct lg_builder *answer, const struct peer *peer)
{
	uint8_t bytes[8 * (LG_MAX_HANDLES + 1)];

	(void)peer;
	memset(bytes, 1, sizeof(bytes));
	lg_put(answer, LG_HANDLES, bytes, sizeof(bytes));
}

static void wrong_lists_of_handles_close_the_connection(void)
{
	static const spoiler spoilers[] = {
		put_seven_bytes,    put_empty_handles,	  put_three_handles, put_a_handle_twice,
		put_another_handle, put_a_handle_of_zero, put_1001_handles,
	};
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 };
	unsigned before;
	struct lg_use use;

	for (size_t i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
		peer_stop(&rig->peer);
		peer_spoil(&rig->peer, LG_RESUME_SAS, spoilers[i]);
		before = peer_count(&rig->peer);
		peer_start(&rig->peer, 7);
		/* It tries again, and is not served. */
		WAIT(peer_count(&rig->peer) >= before + 4, 6000);
		for (unsigned at = before; at < peer_count(&rig->peer); at++)
			assert(rig->peer.seen[at].kind ==
			       ((at - before) % 2 ? LG_RESUME_SAS : LG_HELLO));
		assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_UNKNOWN);
	}
	peer_stop(&rig->peer);
	peer_spoil(&rig->peer, 0, NULL);
	peer_start(&rig->peer, 7);
	WAIT(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE, 6000);
	assert(rig_hard(rig) == 0 && lg_session_count(rig->session, LG_ENTRY_SA) == 2);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void put_spi(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put_u32(answer, LG_SPI, 77);
}

static void put_spi_and_zero(struct lg_builder *answer, const struct peer *peer)
{
	put_spi(answer, peer);
	lg_put_u64(answer, LG_HANDLE, 0);
}

static void put_spi_and_a_short_handle(struct lg_builder *answer, const struct peer *peer)
{
	put_spi(answer, peer);
	lg_put_u32(answer, LG_HANDLE, 77);
}

static void put_spi_and_an_old_handle(struct lg_builder *answer, const struct peer *peer)
{
	put_spi(answer, peer);
	lg_put_u64(answer, LG_HANDLE, OUT_HANDLE);
}

static void put_zero(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put_u64(answer, LG_HANDLE, 0);
}

static void put_two_handles(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put_u64(answer, LG_HANDLE, 77);
	lg_put_u64(answer, LG_HANDLE, 78);
}

static void put_an_old_handle(struct lg_builder *answer, const struct peer *peer)
{
	(void)peer;
	lg_put_u64(answer, LG_HANDLE, IN_HANDLE);
}

static void answers_without_a_new_handle_fail_the_call(void)
{
	static const struct {
		enum lg_kind spoils;
		spoiler spoiler;
	} wrong[] = {
		{ LG_GET_SPI, put_spi },
		{ LG_GET_SPI, put_spi_and_zero },
		{ LG_GET_SPI, put_spi_and_a_short_handle },
		{ LG_GET_SPI, put_spi_and_an_old_handle },
		{ LG_ADD_SA, put_no_handle },
		{ LG_ADD_SA, put_zero },
		{ LG_ADD_SA, put_two_handles },
		{ LG_ADD_SA, put_an_old_handle },
		/* Only RESUME_SAS has a list. */
		{ LG_ADD_SA, put_another_handle },
		{ LG_QUERY_POLICY, put_another_handle },
	};
	struct rig *rig = rig_with_sas();
	unsigned ends = 0;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		uint8_t bytes[64];
		struct lg_builder fields;
		struct lg_use use;
		uint32_t spi;

		WAIT(last_seen(rig)->kind == LG_RESUMED || i == 0, 6000);
		peer_spoil(&rig->peer, wrong[i].spoils, wrong[i].spoiler);
		lg_begin(&fields, bytes, sizeof(bytes), LG_QUERY_POLICY);
		if (wrong[i].spoils == LG_QUERY_POLICY)
			assert(lg_session_query_policy(rig->session, &fields, &use) ==
			       LG_RESULT_DOWN);
		else if (wrong[i].spoils == LG_GET_SPI)
			assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
		else
			assert(add_sa(rig, 0xdef, LG_OUTBOUND) == LG_RESULT_DOWN);
		/* charon goes on without the outbound SA of a rekeying. */
		ends += wrong[i].spoils == LG_ADD_SA;
		assert(rig_hard(rig) == ends && ends_of(rig, 0xdef) == ends);
		assert(lg_session_count(rig->session, LG_ENTRY_SA) == 2);
		assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 0);
	}
	peer_spoil(&rig->peer, 0, NULL);
	WAIT(last_seen(rig)->kind == LG_RESUMED, 6000);
	assert(rig->peer.seen[peer_count(&rig->peer) - 4].handles == 2);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void what_cannot_move_ends_and_keeps_its_new_name(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 }, out = { HERE, THERE, 0xabc };
	struct lg_move move = { .source = THERE, .destination = { 4, { 10, 0, 0, 9 }, 500 } };
	struct lg_move out_move = { .source = move.destination, .destination = THERE };
	unsigned before = peer_count(&rig->peer);

	peer_manner(&rig->peer, REFUSES_MOVES, 0);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_REFUSED);
	EXPECT_KINDS(rig, before, LG_UPDATE_SA, LG_DELETE_SA, LG_DELETE_SA);
	assert(rig->peer.seen[before + 1].handle == IN_HANDLE);
	assert(rig->peer.seen[before + 2].handle == OUT_HANDLE);
	assert(rig_hard(rig) == 2 && ends_of(rig, 1) == 1 && ends_of(rig, 0xabc) == 1);
	assert(rig->last_delay_ms == LG_SETTLE_MS);
	/* charon goes on to move the other one, and then deletes both. */
	before = peer_count(&rig->peer);
	assert(lg_session_update_sa(rig->session, &out, &out_move) == LG_RESULT_UNKNOWN);
	in.destination = move.destination;
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(lg_session_delete_sa(rig->session, &out) == LG_RESULT_DONE);
	assert(peer_count(&rig->peer) == before);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	assert(lg_session_count(rig->session, LG_ENTRY_GONE) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void a_move_without_a_connection_comes_with_the_next_one(void)
{
	const struct lg_address elsewhere = { 4, { 10, 0, 0, 9 }, 4500 };
	struct lg_sa_id in = { THERE, HERE, 1 };
	struct lg_move move = {
		.source = THERE, .destination = elsewhere, .encapsulation = true, .reqid = 6,
	};
	struct rig *rig = rig_with_sas();
	unsigned before;
	struct lg_use use;

	/* One that was lost on its way. */
	peer_manner(&rig->peer, CLOSES, 1);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_DOWN);
	peer_manner(&rig->peer, ANSWERS, 0);
	in.destination = elsewhere;
	before = restart(rig, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_UPDATE_SA, LG_ADD_POLICY,
		     LG_ADD_POLICY, LG_RESUMED);
	assert(rig->peer.seen[before + 2].handle == IN_HANDLE);
	assert(rig->peer.seen[before + 2].reqid == 6);
	assert(lg_same_host(&rig->peer.seen[before + 2].new_destination, &elsewhere));
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_DONE);
	/* Two while nobody is there: the last ends, the reqid of the first, and a name. */
	peer_stop(&rig->peer);
	move.destination = THERE;
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_DOWN);
	in.destination = THERE;
	move.reqid = 0;
	move.destination = HERE;
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_DOWN);
	in.destination = HERE;
	assert(lg_session_name_sa(rig->session, &in, "gw", "net") == LG_RESULT_DOWN);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_UPDATE_SA, LG_NAME_SA, LG_ADD_POLICY,
		     LG_ADD_POLICY, LG_RESUMED);
	assert(rig->peer.seen[before + 2].reqid == 6);
	assert(lg_same_host(&rig->peer.seen[before + 2].new_destination, &HERE));
	/* Once is enough. */
	before = restart(rig, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	/* A refusal ends the child then too. */
	peer_stop(&rig->peer);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_DOWN);
	peer_manner(&rig->peer, REFUSES_MOVES, 0);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 7);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_UPDATE_SA, LG_DELETE_SA, LG_DELETE_SA,
		     LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	assert(rig_hard(rig) == 2 && lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* What lockgated says about versions is logged once, though the link tries again. */
static void another_version_is_named_once(void)
{
	for (int round = 0; round < 2; round++) {
		struct rig *rig = rig_create(getuid());
		unsigned before, after;
		uint32_t spi;

		WAIT(rig_said(rig, "not there", &before), 6000);
		peer_manner(&rig->peer, round ? REFUSES_VERSION_2 : SPEAKS_VERSION_1, 0);
		peer_start(&rig->peer, 7);
		assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
		WAIT(peer_count(&rig->peer) >= 3, 6000);
		for (unsigned i = 0; i < peer_count(&rig->peer); i++)
			assert(rig->peer.seen[i].kind == LG_HELLO);
		WAIT(rig_said(rig,
			      round ? "status 5: install another" :
				      "lockgated speaks version 1 of the protocol, this plugin "
				      "version 2: install lockgate-charon of the same release",
			      &after),
		     6000);
		assert(after == before + 1);
		peer_stop(&rig->peer);
		rig_destroy(rig);
	}
}

static void a_trap_waits_and_an_sa_does_not(void)
{
	struct rig *rig = rig_create(getuid());

	assert(add_policy(rig, 0, 1) == LG_RESULT_DONE);
	assert(add_policy(rig, 0, 2) == LG_RESULT_DONE);
	assert(delete_policy(rig, 0, 2) == LG_RESULT_DONE);
	assert(add_policy(rig, 5, 1) == LG_RESULT_DOWN);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) == 3, 2500);
	assert(rig->peer.seen[1].kind == LG_ADD_POLICY && rig->peer.seen[1].repeat == 0);
	assert(rig->peer.seen[2].kind == LG_RESUMED);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* As charon replaces a trap: lockgated has one policy of a name. */
static void a_trap_that_is_put_again_goes_with_the_last_of_them(void)
{
	struct rig *rig = rig_with_sas();
	unsigned before;

	assert(add_policy(rig, 0, 2) == LG_RESULT_DONE);
	before = peer_count(&rig->peer);
	assert(delete_policy(rig, 0, 2) == LG_RESULT_DONE);
	assert(peer_count(&rig->peer) == before);
	assert(lg_session_count(rig->session, LG_ENTRY_POLICY) == 2);
	/* Of another priority it is the same policy, which has the last one's priority. */
	assert(add_policy(rig, 0, 5) == LG_RESULT_DONE);
	assert(delete_policy(rig, 0, 5) == LG_RESULT_DONE);
	assert(last_seen(rig)->kind == LG_ADD_POLICY && last_seen(rig)->priority == 2);
	assert(delete_policy(rig, 0, 2) == LG_RESULT_DONE);
	assert(last_seen(rig)->kind == LG_DELETE_POLICY && last_seen(rig)->spi == 0);
	assert(delete_policy(rig, 0, 2) == LG_RESULT_UNKNOWN);
	assert(lg_session_count(rig->session, LG_ENTRY_POLICY) == 1);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* charon takes the policies of an SA away, moves it, and puts them again whatever came of that. */
static void policies_of_an_sa_that_moves_outlast_a_connection(void)
{
	struct rig *rig = rig_with_sas();
	const struct lg_address elsewhere = { 4, { 10, 0, 0, 9 }, 500 };
	struct lg_sa_id out = { HERE, THERE, 0xabc };
	struct lg_move move = { .source = HERE, .destination = elsewhere };
	unsigned before, policies = 0;

	assert(delete_policy(rig, 0xabc, 1) == LG_RESULT_DONE);
	peer_manner(&rig->peer, CLOSES, 1);
	assert(lg_session_update_sa(rig->session, &out, &move) == LG_RESULT_DOWN);
	assert(add_policy_to(rig, 0xabc, 1, &elsewhere) == LG_RESULT_DONE);
	/* Of an SA that nobody has it does not wait. */
	assert(add_policy_to(rig, 0xabd, 1, &elsewhere) == LG_RESULT_DOWN);
	before = peer_count(&rig->peer);
	peer_manner(&rig->peer, ANSWERS, 0);
	WAIT(last_seen(rig)->kind == LG_RESUMED && peer_count(&rig->peer) > before, 6000);
	for (unsigned i = before; i < peer_count(&rig->peer); i++)
		policies += rig->peer.seen[i].kind == LG_ADD_POLICY && rig->peer.seen[i].spi == 0xabc;
	assert(policies == 1);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* Of an SA without its policies charon would not know. */
static void a_policy_that_is_refused_again_ends_its_sa(void)
{
	struct rig *rig = rig_with_sas();
	unsigned before = peer_count(&rig->peer), deleted = 0;

	peer_stop(&rig->peer);
	peer_manner(&rig->peer, REFUSES_POLICIES, 0);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) > before && last_seen(rig)->kind == LG_RESUMED, 6000);
	for (unsigned i = before; i < peer_count(&rig->peer); i++)
		deleted += rig->peer.seen[i].kind == LG_DELETE_SA;
	assert(deleted == 2 && rig_hard(rig) == 2);
	assert(ends_of(rig, 1) == 1 && ends_of(rig, 0xabc) == 1);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/*
 * charon was told that a refused trap is there, and a configuration may come that admits it; charon
 * may have looked in vain for an SA that ended.
 */
static void a_refused_trap_and_the_end_of_an_sa_are_told_again(void)
{
	struct rig *rig = rig_with_sas();
	const struct lg_sa_id in = { THERE, HERE, 1 };
	unsigned before;

	peer_stop(&rig->peer);
	rig->peer.lacks_all = true;
	peer_manner(&rig->peer, REFUSES_POLICIES, 0);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 8);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	assert(rig_hard(rig) == 2);
	/* Of one that charon has deleted it hears no more. */
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	peer_manner(&rig->peer, ANSWERS, 0);
	WAIT(peer_count(&rig->peer) == before + 6, LG_REMIND_MS + 6000);
	assert(last_seen(rig)->kind == LG_ADD_POLICY && last_seen(rig)->repeat == 0);
	assert(last_seen(rig)->spi == 0);
	WAIT(rig_hard(rig) == 3, 6000);
	assert(ends_of(rig, 1) == 1 && ends_of(rig, 0xabc) == 2);
	assert(delete_policy(rig, 0, 2) == LG_RESULT_DONE);
	assert(last_seen(rig)->kind == LG_DELETE_POLICY);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* charon 5.9.8 deletes what it could not add; another peer behind its NAT may have that SPI. */
static void an_sa_that_was_refused_is_not_the_one_of_another_port(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id other = { HERE, THERE, 0xabc };
	unsigned before;

	other.destination.port = 5555;
	before = peer_count(&rig->peer);
	assert(lg_session_delete_sa(rig->session, &other) == LG_RESULT_DONE);
	assert(peer_count(&rig->peer) == before);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 2);
	peer_manner(&rig->peer, REFUSES_SAS, 0);
	assert(add_sa(rig, 0xdef, LG_OUTBOUND) == LG_RESULT_REFUSED);
	assert(rig_hard(rig) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void a_lost_answer_is_a_failure_and_not_in_the_ledger(void)
{
	struct rig *rig = rig_with_sas();
	unsigned before;

	peer_manner(&rig->peer, CLOSES, 1);
	assert(add_sa(rig, 0xdef, LG_OUTBOUND) == LG_RESULT_DOWN);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 2);
	/* charon goes on without the outbound SA of a rekeying. */
	assert(rig_hard(rig) == 1 && rig->last_spi == 0xdef);
	peer_manner(&rig->peer, ANSWERS, 0);
	before = peer_count(&rig->peer);
	/* What is named is what charon was told it has. */
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	assert(rig->peer.seen[before + 1].handles == 2);
	/* An answer, and then the end: it is there, and is named. */
	peer_manner(&rig->peer, CLOSES_AFTER, 1);
	assert(add_sa(rig, 0xdee, LG_OUTBOUND) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 3);
	peer_manner(&rig->peer, ANSWERS, 0);
	before = peer_count(&rig->peer);
	EXPECT_KINDS(rig, before, LG_HELLO, LG_RESUME_SAS, LG_ADD_POLICY, LG_ADD_POLICY, LG_RESUMED);
	assert(rig->peer.seen[before + 1].handles == 3);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void silence_ends_in_time(void)
{
	struct rig *rig = rig_with_sas();
	int64_t began = lg_now();
	unsigned before;
	uint32_t spi;

	peer_manner(&rig->peer, SILENT, 0);
	assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
	assert(lg_now() - began >= LG_ANSWER_MS - 10);
	/* Nobody is asked for a while, unless a busy machine let the time pass. */
	before = peer_count(&rig->peer);
	began = lg_now();
	assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
	assert(peer_count(&rig->peer) == before || lg_now() - began >= LG_ANSWER_MS - 10);
	peer_manner(&rig->peer, ANSWERS, 0);
	WAIT(take_spi(rig, &spi) == LG_RESULT_DONE, 6000);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void the_wrong_user_is_sent_nothing(void)
{
	struct rig *rig = rig_create(getuid() + 1);
	uint32_t spi;

	peer_start(&rig->peer, 7);
	assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
	usleep(1200000);
	assert(peer_count(&rig->peer) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void events_arrive_beside_answers(void)
{
	struct rig *rig = rig_with_sas();
	uint32_t spi;

	peer_stop(&rig->peer);
	peer_manner(&rig->peer, FLOODS, 0);
	peer_start(&rig->peer, 7);
	/* The first call may find the end of the old connection. */
	WAIT(last_seen(rig)->kind == LG_RESUMED, 6000);
	for (int i = 0; i < 20; i++)
		assert(take_spi(rig, &spi) == LG_RESULT_DONE);
	/* Those of RESUME_SAS, two policies, RESUMED and each call; none is lost and none is late. */
	assert(rig_soft(rig) == 24 * 500 && rig_hard(rig) == 0);
	/* Between calls the link's own thread delivers; of another incarnation, of an unknown handle
	 * and of a reserved SPI it does not. */
	tell(rig->peer.connection, 6, OUT_HANDLE);
	tell(rig->peer.connection, 7, OUT_HANDLE + 1000);
	tell(rig->peer.connection, 7, OUT_HANDLE + 1);
	tell(rig->peer.connection, 7, OUT_HANDLE);
	WAIT(rig_soft(rig) == 24 * 500 + 1, 1000);
	assert(rig->last_spi == 0xabc);
	/* None of them closed the connection. */
	assert(take_spi(rig, &spi) == LG_RESULT_DONE && last_seen(rig)->kind == LG_GET_SPI);
	assert(rig_soft(rig) == 25 * 500 + 1);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* charon looks for a trap that it has put a moment ago, and does not find it yet. */
static void an_acquire_waits_until_charon_knows_its_trap(void)
{
	struct rig *rig = rig_with_sas();
	unsigned told = 0;

	do {
		assert(told < 20 && add_policy(rig, 0, 10 + told) == LG_RESULT_DONE);
		tell_acquire(rig->peer.connection, 7);
		told++;
		WAIT(rig_soft(rig) == told, 5000);
		/* A machine with too much to do may have taken longer than that. */
	} while (rig->last_delay_ms != LG_SETTLE_MS);
	usleep((LG_SETTLE_MS + 50) * 1000);
	tell_acquire(rig->peer.connection, 7);
	WAIT(rig_soft(rig) == told + 1, 5000);
	assert(rig->last_delay_ms == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void *call_much(void *given)
{
	struct rig *rig = given;
	struct lg_sa_id in = { THERE, HERE, 0 };
	struct lg_use use;

	for (int i = 0; i < 150; i++) {
		if (take_spi(rig, &in.spi) != LG_RESULT_DONE)
			continue;
		if (add_sa(rig, in.spi, LG_INBOUND) == LG_RESULT_DONE)
			lg_session_query_sa(rig->session, &in, &use);
		lg_session_delete_sa(rig->session, &in);
	}
	return NULL;
}

static void many_threads_and_a_peer_that_hangs_up(void)
{
	struct rig *rig = rig_create(getuid());
	pthread_t threads[4];

	peer_start(&rig->peer, 7);
	for (int i = 0; i < 4; i++)
		assert(pthread_create(&threads[i], NULL, call_much, rig) == 0);
	for (int i = 0; i < 40; i++) {
		peer_manner(&rig->peer, i % 2 ? CLOSES : CLOSES_AFTER, 5);
		usleep(5000);
		peer_manner(&rig->peer, ANSWERS, 0);
		usleep(5000);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	assert(lg_session_count(rig->session, LG_ENTRY_SPI) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void ten_thousand_children(void)
{
	struct rig *rig = rig_create(getuid());
	unsigned before;
	int64_t began;
	uint32_t spi;

	peer_start(&rig->peer, 7);
	for (int i = 0; i < 10000; i++) {
		assert(take_spi(rig, &spi) == LG_RESULT_DONE);
		assert(add_sa(rig, spi, LG_INBOUND) == LG_RESULT_DONE);
		assert(add_sa(rig, 0x100000 + i, LG_OUTBOUND) == LG_RESULT_DONE);
	}
	began = lg_now();
	for (int i = 0; i < 1000; i++)
		assert(take_spi(rig, &spi) == LG_RESULT_DONE);
	printf("    20000 SAs: a call takes %lld us; ",
	       (long long)(lg_now() - began) * 1000 / 1000);
	began = lg_now();
	before = restart(rig, 7);
	/* With the reservations: 21 lumps. */
	WAIT(peer_count(&rig->peer) == before + 23, 20000);
	printf("resumed within %lld ms; ", (long long)(lg_now() - began));
	assert(rig_hard(rig) == 0);
	rig->peer.lacks_all = true;
	began = lg_now();
	before = restart(rig, 8);
	WAIT(peer_count(&rig->peer) == before + 23, 20000);
	printf("all ended within %lld ms\n", (long long)(lg_now() - began));
	assert(rig_hard(rig) == 20000 && lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

#define RUN(test)                                                                         \
	do {                                                                              \
		int64_t began = lg_now();                                                 \
		test();                                                                   \
		printf("passed  %s  %lld ms\n", #test, (long long)(lg_now() - began));    \
		passed++;                                                                 \
	} while (0)

int main(void)
{
	int passed = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(120);
	RUN(a_message_reads_back);
	RUN(any_bytes_are_read_without_harm);
	RUN(a_version_is_found_whole);
	RUN(the_ledger_finds_and_forgets);
	RUN(sas_of_a_child_become_partners);
	RUN(calls_reach_the_peer_and_the_ledger);
	RUN(the_same_incarnation_gets_handles_and_policies);
	RUN(each_charon_has_another_number);
	RUN(names_that_were_lost_come_with_the_next_connection);
	RUN(no_key_stays_whatever_the_answer);
	RUN(a_new_incarnation_lacks_all_and_both_directions_end_once);
	RUN(a_lacking_sa_takes_its_partner_along_and_no_other);
	RUN(wrong_lists_of_handles_close_the_connection);
	RUN(answers_without_a_new_handle_fail_the_call);
	RUN(what_cannot_move_ends_and_keeps_its_new_name);
	RUN(a_move_without_a_connection_comes_with_the_next_one);
	RUN(another_version_is_named_once);
	RUN(a_trap_waits_and_an_sa_does_not);
	RUN(a_trap_that_is_put_again_goes_with_the_last_of_them);
	RUN(policies_of_an_sa_that_moves_outlast_a_connection);
	RUN(a_policy_that_is_refused_again_ends_its_sa);
	RUN(a_refused_trap_and_the_end_of_an_sa_are_told_again);
	RUN(an_sa_that_was_refused_is_not_the_one_of_another_port);
	RUN(a_lost_answer_is_a_failure_and_not_in_the_ledger);
	RUN(silence_ends_in_time);
	RUN(the_wrong_user_is_sent_nothing);
	RUN(events_arrive_beside_answers);
	RUN(an_acquire_waits_until_charon_knows_its_trap);
	RUN(many_threads_and_a_peer_that_hangs_up);
	RUN(ten_thousand_children);
	printf("%d passed, 0 failed, 0 skipped\n", passed);
	return 0;
}
