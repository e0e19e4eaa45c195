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
	uint32_t priority;
	int repeat;
	bool has_key;
};

enum manner {
	ANSWERS,
	SILENT,
	/* Closes without an answer, or after one, at message `at`. */
	CLOSES,
	CLOSES_AFTER,
	/* Answers a repeated SA so. */
	REFUSES_REPEATS,
	/* Refuses to move an SA; to add one; to add a policy. */
	REFUSES_MOVES,
	REFUSES_SAS,
	REFUSES_POLICIES,
	/* Tells 500 events before each answer. */
	FLOODS,
};

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
	unsigned count;
	struct seen seen[SEEN];
	/* The last name of a connection. */
	char name[LG_MAX_NAME + 1];
};

static const struct lg_address HERE = { 4, { 10, 0, 0, 1 }, 500 };
static const struct lg_address THERE = { 4, { 10, 0, 0, 2 }, 500 };

static void reply(int to, const struct lg_view *request, struct peer *peer, uint16_t status)
{
	const uint64_t use[3] = { 3, 300, 7 };
	uint8_t bytes[256];
	struct lg_builder answer;

	lg_begin(&answer, bytes, sizeof(bytes), LG_ANSWER);
	lg_put_u16(&answer, LG_STATUS, status);
	if (status == LG_DONE && request->kind == LG_GET_SPI)
		lg_put_u32(&answer, LG_SPI, ++peer->next_spi);
	if (status == LG_DONE &&
	    (request->kind == LG_QUERY_SA || request->kind == LG_QUERY_POLICY))
		lg_put_u64s(&answer, LG_USE, use);
	lg_finish(&answer, request->number, peer->incarnation);
	send(to, answer.bytes, answer.used, MSG_NOSIGNAL);
}

static void tell(int to, uint64_t incarnation, uint32_t spi)
{
	uint8_t bytes[256];
	struct lg_builder event;

	lg_begin(&event, bytes, sizeof(bytes), LG_EXPIRE);
	lg_put_u32(&event, LG_SPI, spi);
	lg_put_address(&event, LG_DESTINATION, &HERE);
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

/* Records a request and answers it; false ends the connection. Called with the lock held. */
static bool handle(struct peer *peer, int connection, const struct lg_view *request)
{
	struct seen *seen = &peer->seen[peer->count % SEEN];
	uint16_t status = LG_DONE;
	const uint8_t *name;
	uint8_t repeat;
	size_t length;

	*seen = (struct seen){
		.kind = request->kind,
		.incarnation = peer->incarnation,
		.repeat = lg_read_u8(request, LG_REPEAT, &repeat) ? repeat : -1,
		.has_key = lg_find(request, LG_KEY, &length),
	};
	lg_read_u32(request, LG_SPI, &seen->spi);
	lg_read_u32(request, LG_PRIORITY, &seen->priority);
	name = lg_find(request, LG_IKE, &length);
	if (name && length < sizeof(peer->name)) {
		memset(peer->name, 0, sizeof(peer->name));
		memcpy(peer->name, name, length);
	}
	peer->count++;
	assert(request->incarnation == (request->kind == LG_HELLO ? 0 : peer->incarnation));
	if (peer->manner == SILENT)
		return true;
	if (peer->manner == CLOSES && peer->count >= peer->at)
		return false;
	if (peer->manner == REFUSES_REPEATS && seen->repeat == 1)
		status = request->kind == LG_ADD_SA ? LG_KEY_USED : LG_REFUSED;
	if ((peer->manner == REFUSES_MOVES && request->kind == LG_UPDATE_SA) ||
	    (peer->manner == REFUSES_SAS && request->kind == LG_ADD_SA) ||
	    (peer->manner == REFUSES_POLICIES && request->kind == LG_ADD_POLICY))
		status = LG_REFUSED;
	for (uint32_t i = 0; peer->manner == FLOODS && request->kind != LG_HELLO && i < 500; i++)
		tell(connection, peer->incarnation, i);
	reply(connection, request, peer, status);
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

/* --- the rig --------------------------------------------------------------------------------- */

struct rig {
	struct peer peer;
	struct lg_session *session;
	pthread_mutex_t lock;
	unsigned soft;
	unsigned hard;
	uint32_t last_spi;
	uint32_t last_delay_ms;
	char folder[64];
};

static void on_event(void *owner, const struct lg_event *event)
{
	struct rig *rig = owner;

	pthread_mutex_lock(&rig->lock);
	*(event->hard ? &rig->hard : &rig->soft) += 1;
	rig->last_spi = event->spi;
	rig->last_delay_ms = event->delay_ms;
	pthread_mutex_unlock(&rig->lock);
}

static void on_log(void *owner, const char *text)
{
	(void)owner;
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

	lg_begin(&to, bytes, sizeof(bytes), LG_MAPPING);
	lg_put_u32(&to, LG_SPI, 0xc0000001);
	lg_put_address(&to, LG_DESTINATION, &six);
	lg_put_selector(&to, LG_SOURCE_SELECTOR, &selector);
	lg_finish(&to, 9, 0x1122334455667788u);
	assert(!to.failed && to.used == 24 + 8 + 22 + 42);
	assert(lg_parse(&view, bytes, to.used) == LG_PARSED);
	assert(view.kind == LG_MAPPING && view.number == 9);
	assert(view.incarnation == 0x1122334455667788u);
	assert(lg_read_u32(&view, LG_SPI, &number) && number == 0xc0000001);
	assert(lg_read_address(&view, LG_DESTINATION, &back));
	assert(lg_same_host(&back, &six) && back.port == 4500);
	assert(lg_read_selector(&view, LG_SOURCE_SELECTOR, &selector_back));
	assert(memcmp(&selector, &selector_back, sizeof(selector)) == 0);
	assert(!lg_read_u32(&view, LG_REQID, &number) && !lg_read_u32(&view, LG_DESTINATION, &number));
	assert(lg_has_just(&view, LG_FIELD(LG_SPI),
			   LG_FIELD(LG_DESTINATION) | LG_FIELD(LG_SOURCE_SELECTOR)));
	assert(!lg_has_just(&view, LG_FIELD(LG_SPI), LG_FIELD(LG_DESTINATION)));
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
			lg_has_just(&view, LG_FIELD(LG_STATUS), ~0u);
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
	uint8_t key[36] = { 1 }, fields[4] = { 0 };
	size_t count = 0;

	for (uint32_t i = 0; i < 1000; i++) {
		fields[0] = i;
		fields[1] = i >> 8;
		entries[i] = lg_ledger_new(ledger, i % 2 ? LG_ENTRY_POLICY : LG_ENTRY_SA, fields, 4);
		entries[i]->spi = i;
		entries[i]->destination = i % 4 ? HERE : THERE;
		if (i % 2 == 0)
			assert(lg_ledger_set_keys(ledger, entries[i], key, 36, NULL, 0));
		lg_ledger_keep(ledger, entries[i]);
	}
	assert(lg_ledger_count(ledger, LG_ENTRY_SA) == 500);
	assert(lg_ledger_sa(ledger, 4, &THERE) == entries[4]);
	assert(!lg_ledger_sa(ledger, 4, &HERE) && !lg_ledger_sa(ledger, 5, &HERE));
	fields[0] = 5;
	fields[1] = 0;
	assert(lg_ledger_policy(ledger, fields, 4) == entries[5]);
	assert(lg_ledger_rewrite(ledger, entries[5], fields, 3));
	assert(!lg_ledger_policy(ledger, fields, 4) && lg_ledger_policy(ledger, fields, 3));
	for (at = lg_ledger_first(ledger); at; at = at->next)
		assert(at == entries[count++]);
	assert(count == 1000);
	for (uint32_t i = 0; i < 1000; i += 2)
		lg_ledger_drop(ledger, entries[i]);
	assert(lg_ledger_count(ledger, LG_ENTRY_SA) == 0 && lg_ledger_first(ledger) == entries[1]);
	at = lg_ledger_new(ledger, LG_ENTRY_SA, NULL, 0);
	assert(!lg_ledger_set_keys(ledger, at, key, 36, key, 120));
	lg_ledger_drop(ledger, at);
	lg_ledger_destroy(ledger);
}

static void a_slot_comes_back_empty(void)
{
	struct lg_secrets *secrets = lg_secrets_create();
	uint8_t *slots[1200];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 1200; i++) {
			slots[i] = lg_secret_take(secrets);
			for (int j = 0; j < LG_SECRET_BYTES; j++)
				assert(slots[i][j] == 0);
			memset(slots[i], 0xa5, LG_SECRET_BYTES);
		}
		for (int i = 0; i < 1200; i++) {
			lg_secret_give(secrets, slots[i]);
			/* Nothing of it is left but the link of the free list. */
			for (int j = sizeof(void *); j < LG_SECRET_BYTES; j++)
				assert(slots[i][j] == 0);
		}
	}
	lg_secrets_destroy(secrets);
}

/* --- session --------------------------------------------------------------------------------- */

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
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
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

static void the_same_incarnation_gets_everything_again(void)
{
	struct rig *rig = rig_with_sas();
	unsigned before = peer_count(&rig->peer);
	static const uint16_t kinds[] = { LG_HELLO,	 LG_ADD_SA,	LG_ADD_SA,
					  LG_ADD_POLICY, LG_ADD_POLICY, LG_REPEATED };

	peer_stop(&rig->peer);
	peer_start(&rig->peer, 7);
	/* The link comes back by its timer, without a call. */
	WAIT(peer_count(&rig->peer) == before + 6, 2500);
	for (int i = 0; i < 6; i++) {
		const struct seen *seen = &rig->peer.seen[before + i];

		assert(seen->kind == kinds[i]);
		assert(seen->repeat == (i > 0 && i < 5 ? 1 : -1));
		assert(seen->has_key == (seen->kind == LG_ADD_SA));
	}
	assert(rig_soft(rig) == 0 && rig_hard(rig) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* A name that did not arrive is told after its SA, one that did again; none without an SA. */
static void names_that_were_lost_come_with_the_next_connection(void)
{
	static const uint16_t kinds[] = { LG_HELLO,	 LG_ADD_SA,	LG_NAME_SA,  LG_ADD_SA,
					  LG_ADD_POLICY, LG_ADD_POLICY, LG_REPEATED };
	const struct lg_sa_id in = { THERE, HERE, 1 }, none = { THERE, HERE, 0xdef };
	struct rig *rig = rig_with_sas();
	unsigned before;

	peer_manner(&rig->peer, CLOSES, 1);
	assert(lg_session_name_sa(rig->session, &in, "gw", "net") == LG_RESULT_DOWN);
	assert(lg_session_name_sa(rig->session, &none, "gw", "net") == LG_RESULT_UNKNOWN);
	peer_manner(&rig->peer, ANSWERS, 0);
	for (int round = 0; round < 2; round++) {
		peer_stop(&rig->peer);
		before = peer_count(&rig->peer);
		rig->peer.name[0] = '\0';
		peer_start(&rig->peer, 7);
		WAIT(peer_count(&rig->peer) == before + 7, 2500);
		for (int i = 0; i < 7; i++)
			assert(rig->peer.seen[before + i].kind == kinds[i]);
		assert(rig->peer.seen[before + 2].spi == in.spi);
		assert(strcmp(rig->peer.name, "gw") == 0);
	}
	/* One that is told while nobody is there comes too. */
	peer_stop(&rig->peer);
	assert(lg_session_name_sa(rig->session, &in, "other", "net") == LG_RESULT_DOWN);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) == before + 7, 2500);
	assert(strcmp(rig->peer.name, "other") == 0);
	/* Another incarnation has no SA, and hears no name. */
	peer_stop(&rig->peer);
	before = peer_count(&rig->peer);
	peer_start(&rig->peer, 8);
	WAIT(peer_count(&rig->peer) == before + 4, 2500);
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

static void a_new_incarnation_gets_no_key(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 }, out = { HERE, THERE, 0xabc };
	unsigned before = peer_count(&rig->peer);
	struct lg_use use;
	uint32_t spi;

	if (!SANITIZED)
		assert(copies_of_key(1) == 1 && copies_of_key(0xabc) == 1);
	peer_stop(&rig->peer);
	peer_start(&rig->peer, 8);
	WAIT(peer_count(&rig->peer) == before + 4, 2500);
	assert(rig->peer.seen[before].kind == LG_HELLO);
	assert(rig->peer.seen[before + 1].kind == LG_ADD_POLICY);
	assert(rig->peer.seen[before + 2].kind == LG_ADD_POLICY);
	assert(rig->peer.seen[before + 2].repeat == 0);
	assert(rig->peer.seen[before + 3].kind == LG_REPEATED);
	if (!SANITIZED)
		assert(copies_of_key(1) == 0 && copies_of_key(0xabc) == 0);
	/* charon is asked to renew the inbound one at once. */
	WAIT(rig_soft(rig) == 1, 1000);
	assert(rig->last_spi == 1 && rig_hard(rig) == 0);
	/* Of the old ones the new incarnation is not asked. */
	assert(lg_session_query_sa(rig->session, &in, &use) == LG_RESULT_UNKNOWN);
	/* A number that charon still has is not taken twice. */
	rig->peer.next_spi = 0;
	assert(take_spi(rig, &spi) == LG_RESULT_DONE && spi == 2);
	/* charon that does nothing hears that both ended, and when it deletes them that is all. */
	WAIT(rig_hard(rig) == 2, LG_RENEW_MS + 2500);
	before = peer_count(&rig->peer);
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(lg_session_delete_sa(rig->session, &out) == LG_RESULT_DONE);
	assert(peer_count(&rig->peer) == before);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void a_refused_repetition_ends_the_sa(void)
{
	static const uint16_t kinds[] = { LG_HELLO,	 LG_ADD_SA,	LG_DELETE_SA, LG_ADD_SA,
					  LG_DELETE_SA,	 LG_ADD_POLICY, LG_ADD_POLICY, LG_REPEATED };
	struct rig *rig = rig_with_sas();
	unsigned before = peer_count(&rig->peer);

	peer_stop(&rig->peer);
	peer_manner(&rig->peer, REFUSES_REPEATS, 0);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) == before + 8, 6000);
	for (int i = 0; i < 8; i++)
		assert(rig->peer.seen[before + i].kind == kinds[i]);
	/* The policy of the SA claims nothing; the trap is repeated. */
	assert(rig->peer.seen[before + 5].repeat == 0 && rig->peer.seen[before + 6].repeat == 1);
	assert(rig_hard(rig) == 2);
	if (!SANITIZED)
		assert(copies_of_key(1) == 0 && copies_of_key(0xabc) == 0);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void what_cannot_move_ends_and_keeps_its_new_name(void)
{
	struct rig *rig = rig_with_sas();
	struct lg_sa_id in = { THERE, HERE, 1 }, out = { HERE, THERE, 0xabc };
	struct lg_move move = { .source = THERE, .destination = { 4, { 10, 0, 0, 9 }, 500 } };
	struct lg_move out_move = { .source = move.destination, .destination = THERE };
	unsigned before;

	peer_manner(&rig->peer, REFUSES_MOVES, 0);
	assert(lg_session_update_sa(rig->session, &in, &move) == LG_RESULT_REFUSED);
	before = peer_count(&rig->peer);
	assert(rig->peer.seen[before - 2].kind == LG_UPDATE_SA);
	assert(rig->peer.seen[before - 1].kind == LG_DELETE_SA);
	assert(rig_hard(rig) == 1 && rig->last_spi == 1);
	in.destination = move.destination;
	assert(lg_session_delete_sa(rig->session, &in) == LG_RESULT_DONE);
	assert(peer_count(&rig->peer) == before && lg_session_count(rig->session, LG_ENTRY_SA) == 1);
	/* Without a connection it moves too; the repetition has the new addresses. */
	peer_stop(&rig->peer);
	assert(lg_session_update_sa(rig->session, &out, &out_move) != LG_RESULT_DONE);
	assert(lg_session_delete_sa(rig->session, &out) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 0);
	rig_destroy(rig);
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
	assert(rig->peer.seen[2].kind == LG_REPEATED);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static const struct seen *last_seen(struct rig *rig)
{
	return &rig->peer.seen[(peer_count(&rig->peer) - 1) % SEEN];
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
	WAIT(last_seen(rig)->kind == LG_REPEATED && peer_count(&rig->peer) > before, 6000);
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
	WAIT(peer_count(&rig->peer) > before && last_seen(rig)->kind == LG_REPEATED, 6000);
	for (unsigned i = before; i < peer_count(&rig->peer); i++)
		deleted += rig->peer.seen[i].kind == LG_DELETE_SA && rig->peer.seen[i].spi == 0xabc;
	assert(deleted == 1 && rig_hard(rig) == 1 && rig->last_spi == 0xabc);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

/* It was told to be there: a configuration may come that admits it. */
static void a_trap_that_was_refused_is_asked_for_again(void)
{
	struct rig *rig = rig_create(getuid());

	assert(add_policy(rig, 0, 1) == LG_RESULT_DONE);
	peer_manner(&rig->peer, REFUSES_POLICIES, 0);
	peer_start(&rig->peer, 7);
	WAIT(peer_count(&rig->peer) == 3, 6000);
	assert(last_seen(rig)->kind == LG_REPEATED);
	peer_manner(&rig->peer, ANSWERS, 0);
	WAIT(peer_count(&rig->peer) == 4, LG_REMIND_MS + 6000);
	assert(last_seen(rig)->kind == LG_ADD_POLICY && last_seen(rig)->repeat == 0);
	assert(delete_policy(rig, 0, 1) == LG_RESULT_DONE);
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
	if (!SANITIZED)
		assert(copies_of_key(0xdef) == 0);
	peer_manner(&rig->peer, ANSWERS, 0);
	before = peer_count(&rig->peer);
	WAIT(peer_count(&rig->peer) >= before + 6, 3500);
	/* What was repeated is what charon was told it has. */
	for (unsigned i = before; i < peer_count(&rig->peer); i++)
		assert(rig->peer.seen[i].spi != 0xdef);
	/* An answer, and then the end: it is there, and is repeated. */
	peer_manner(&rig->peer, CLOSES_AFTER, 1);
	assert(add_sa(rig, 0xdee, LG_OUTBOUND) == LG_RESULT_DONE);
	assert(lg_session_count(rig->session, LG_ENTRY_SA) == 3);
	peer_stop(&rig->peer);
	rig_destroy(rig);
}

static void silence_ends_in_time(void)
{
	struct rig *rig = rig_with_sas();
	int64_t began = lg_now(), took;
	uint32_t spi;

	peer_manner(&rig->peer, SILENT, 0);
	assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
	took = lg_now() - began;
	assert(took >= LG_ANSWER_MS - 10 && took < LG_ANSWER_MS + 500);
	began = lg_now();
	assert(take_spi(rig, &spi) == LG_RESULT_DOWN);
	assert(lg_now() - began < 300);
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
	struct rig *rig = rig_create(getuid());
	uint32_t spi;

	peer_manner(&rig->peer, FLOODS, 0);
	peer_start(&rig->peer, 7);
	for (int i = 0; i < 20; i++)
		assert(take_spi(rig, &spi) == LG_RESULT_DONE);
	/* Those of REPEATED and of each call; none is lost and none is late. */
	assert(rig_soft(rig) == 21 * 500 && rig_hard(rig) == 0);
	/* Between calls the link's own thread delivers; of another incarnation it does not. */
	tell(rig->peer.connection, 7, 4711);
	WAIT(rig_soft(rig) == 21 * 500 + 1, 1000);
	assert(rig->last_spi == 4711);
	tell(rig->peer.connection, 6, 4712);
	usleep(100000);
	assert(rig_soft(rig) == 21 * 500 + 1);
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
	peer_stop(&rig->peer);
	peer_start(&rig->peer, 7);
	spi = peer_count(&rig->peer);
	WAIT(peer_count(&rig->peer) >= spi + 20002, 20000);
	printf("repeated within %lld ms\n", (long long)(lg_now() - began));
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
	RUN(a_slot_comes_back_empty);
	RUN(calls_reach_the_peer_and_the_ledger);
	RUN(the_same_incarnation_gets_everything_again);
	RUN(names_that_were_lost_come_with_the_next_connection);
	RUN(a_new_incarnation_gets_no_key);
	RUN(a_refused_repetition_ends_the_sa);
	RUN(what_cannot_move_ends_and_keeps_its_new_name);
	RUN(a_trap_waits_and_an_sa_does_not);
	RUN(a_trap_that_is_put_again_goes_with_the_last_of_them);
	RUN(policies_of_an_sa_that_moves_outlast_a_connection);
	RUN(a_policy_that_is_refused_again_ends_its_sa);
	RUN(a_trap_that_was_refused_is_asked_for_again);
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
