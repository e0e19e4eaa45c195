/* SPDX-License-Identifier: MIT */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "secret.h"

struct lg_link {
	struct lg_link_calls calls;
	struct sockaddr_un address;
	uid_t peer;
	char charon[32];
	char plugin[32];
	uint8_t charon_id[LG_CHARON_ID_BYTES];

	pthread_mutex_t lock;
	pthread_t thread;
	bool running;
	bool stopping;
	/* Watches the socket and the wake-up call, so that the thread never polls a closed number. */
	int watched;
	int wake;

	/* The connection; -1: none. */
	int socket;
	uint64_t incarnation;
	uint32_t number;
	/* The owner is resuming: the connection is there, but not yet for others. */
	bool greeting;
	/* Before it no attempt is made to connect. */
	int64_t not_before;
	int64_t greeted_by;
	/* What was said last about the state, so that a state is logged once. */
	char said[768];

	/* Two pages for messages, one each way, locked where possible. */
	uint8_t *sent;
	uint8_t *received;
	bool unlocked;
};

#define BUFFER_BYTES (LG_MAX_MESSAGE + 4096)
#define EVENTS_AT_ONCE 64

int64_t lg_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void lg_link_log(struct lg_link *link, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	link->calls.log(link->calls.owner, text);
}

/* Logs a state unless it was the last one logged. */
static void say(struct lg_link *link, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void say(struct lg_link *link, const char *format, ...)
{
	char text[sizeof(link->said)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (strcmp(text, link->said) == 0)
		return;
	memcpy(link->said, text, sizeof(text));
	link->calls.log(link->calls.owner, text);
}

static void disconnect(struct lg_link *link)
{
	if (link->socket < 0)
		return;
	epoll_ctl(link->watched, EPOLL_CTL_DEL, link->socket, NULL);
	close(link->socket);
	link->socket = -1;
	link->incarnation = 0;
	explicit_bzero(link->received, BUFFER_BYTES);
}

/* Closes a connection that misbehaved, and waits before the next. */
static void give_up(struct lg_link *link)
{
	disconnect(link);
	link->not_before = lg_now() + LG_RETRY_MS;
}

void lg_link_reject(struct lg_link *link, const char *why)
{
	say(link, "an answer of lockgated does not fit: %s: connection closed", why);
	give_up(link);
}

static bool wait_for(int socket, short what, int64_t until)
{
	struct pollfd poll_for = { .fd = socket, .events = what };
	int64_t left;
	int ready;

	do {
		left = until - lg_now();
		if (left <= 0)
			return false;
		ready = poll(&poll_for, 1, (int)left);
	} while (ready < 0 && errno == EINTR);
	return ready > 0;
}

static bool send_within(struct lg_link *link, const struct lg_builder *request, int64_t until)
{
	for (;;) {
		ssize_t sent = send(link->socket, request->bytes, request->used,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent == (ssize_t)request->used)
			return true;
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
			say(link, "lost lockgated: sending failed");
			disconnect(link);
			return false;
		}
		if (!wait_for(link->socket, POLLOUT, until)) {
			say(link, "lockgated takes no requests: connection closed");
			give_up(link);
			return false;
		}
	}
}

enum arrived {
	ARRIVED,
	ARRIVED_NOTHING,
	ARRIVED_END,
};

/* Receives one message that is there; of another version it has nothing but a header. */
static enum arrived arrive(struct lg_link *link, struct lg_view *view)
{
	ssize_t length;

	do {
		length = recv(link->socket, link->received, LG_MAX_MESSAGE + 1,
			      MSG_DONTWAIT | MSG_TRUNC);
	} while (length < 0 && errno == EINTR);
	if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return ARRIVED_NOTHING;
	if (length <= 0) {
		say(link, "lost lockgated: it closed the connection");
		disconnect(link);
		return ARRIVED_END;
	}
	if (length > LG_MAX_MESSAGE) {
		say(link, "a message of lockgated is too long: connection closed");
		give_up(link);
		return ARRIVED_END;
	}
	switch (lg_parse(view, link->received, length)) {
	case LG_PARSED:
		return ARRIVED;
	case LG_PARSED_OTHER_VERSION:
		say(link,
		    "lockgated speaks version %u of the protocol, this plugin version %u: install "
		    "lockgate-charon of the same release",
		    view->version, LG_VERSION);
		break;
	case LG_PARSED_WRONG:
		say(link, "a message of lockgated is not of the protocol: connection closed");
		break;
	}
	give_up(link);
	return ARRIVED_END;
}

static bool read_handle(const struct lg_view *view, uint64_t *handle)
{
	return lg_read_u64(view, LG_HANDLE, handle) && *handle != 0;
}

/* Reads what lockgated tells by itself; false if it is malformed. */
static bool read_event(const struct lg_view *view, struct lg_event *event)
{
	uint8_t hardness = 0;

	*event = (struct lg_event){ .kind = view->kind };
	switch (view->kind) {
	case LG_ACQUIRE:
		return lg_has_just(view,
				   LG_FIELD(LG_REQID) | LG_FIELD(LG_SOURCE_SELECTOR) |
					   LG_FIELD(LG_DESTINATION_SELECTOR),
				   0) &&
		       lg_read_u32(view, LG_REQID, &event->reqid) &&
		       lg_read_selector(view, LG_SOURCE_SELECTOR, &event->source) &&
		       lg_read_selector(view, LG_DESTINATION_SELECTOR, &event->destination);
	case LG_EXPIRE:
		if (!lg_has_just(view, LG_FIELD(LG_HANDLE) | LG_FIELD(LG_HARDNESS), 0) ||
		    !read_handle(view, &event->handle) ||
		    !lg_read_u8(view, LG_HARDNESS, &hardness) || hardness > 1)
			return false;
		event->hard = hardness;
		return true;
	case LG_MAPPING:
		return lg_has_just(view, LG_FIELD(LG_HANDLE) | LG_FIELD(LG_NEW_SOURCE), 0) &&
		       read_handle(view, &event->handle) &&
		       lg_read_address(view, LG_NEW_SOURCE, &event->new_source);
	default:
		return false;
	}
}

/* Delivers a message with number 0; false if the connection was closed for it. */
static bool deliver(struct lg_link *link, const struct lg_view *view)
{
	struct lg_event event;

	if (view->incarnation != link->incarnation)
		return true;
	if (!read_event(view, &event)) {
		say(link, "lockgated tells something malformed (kind %u): connection closed",
		    view->kind);
		give_up(link);
		return false;
	}
	link->calls.event(link->calls.owner, &event);
	return true;
}

/* Fields that an answer must have, besides STATUS, if the request was carried out. */
static uint64_t needed_when_done(uint16_t asked)
{
	switch (asked) {
	case LG_GET_SPI:
		return LG_FIELD(LG_SPI) | LG_FIELD(LG_HANDLE);
	case LG_ADD_SA:
		return LG_FIELD(LG_HANDLE);
	case LG_QUERY_SA:
	case LG_QUERY_POLICY:
		return LG_FIELD(LG_USE);
	default:
		return 0;
	}
}

/* False for handles that cannot be: an uneven length, too many, none, or a 0 among them. */
static bool read_handles(const struct lg_view *view, struct lg_answer *answer)
{
	size_t length;

	answer->handles = lg_find(view, LG_HANDLES, &length);
	if (!answer->handles)
		return true;
	answer->handle_count = length / 8;
	if (!length || length % 8 || answer->handle_count > LG_MAX_HANDLES)
		return false;
	for (size_t i = 0; i < answer->handle_count; i++)
		if (!lg_decode_u64(answer->handles + 8 * i))
			return false;
	return true;
}

static bool read_text(const struct lg_view *view, struct lg_answer *answer)
{
	size_t length;
	const uint8_t *text = lg_find(view, LG_TEXT, &length);

	if (text && length >= sizeof(answer->text))
		return false;
	/* Control characters have no place in a log. */
	for (size_t i = 0; text && i < length; i++)
		answer->text[i] = text[i] < ' ' || text[i] == 0x7f ? '?' : (char)text[i];
	return true;
}

static bool read_answer(const struct lg_view *view, uint16_t asked, struct lg_answer *answer)
{
	uint64_t needed = 0, allowed = LG_FIELD(LG_TEXT);

	memset(answer, 0, sizeof(*answer));
	if (view->kind != LG_ANSWER || !lg_read_u16(view, LG_STATUS, &answer->status))
		return false;
	if (answer->status == LG_DONE) {
		needed = needed_when_done(asked);
		if (asked == LG_RESUME_SAS)
			allowed |= LG_FIELD(LG_HANDLES);
	}
	if (!lg_has_just(view, LG_FIELD(LG_STATUS) | needed, allowed))
		return false;
	if ((needed & LG_FIELD(LG_SPI)) && !lg_read_u32(view, LG_SPI, &answer->spi))
		return false;
	if ((needed & LG_FIELD(LG_HANDLE)) && !read_handle(view, &answer->handle))
		return false;
	if ((needed & LG_FIELD(LG_USE)) && !lg_read_u64s(view, LG_USE, answer->use))
		return false;
	return read_handles(view, answer) && read_text(view, answer);
}

static enum lg_asked answer_within(struct lg_link *link, uint16_t asked,
				   struct lg_answer *answer, int64_t until)
{
	struct lg_view view;

	for (;;) {
		switch (arrive(link, &view)) {
		case ARRIVED_END:
			return LG_ASKED_LOST;
		case ARRIVED_NOTHING:
			if (wait_for(link->socket, POLLIN, until))
				continue;
			say(link, "lockgated does not answer: connection closed");
			give_up(link);
			return LG_ASKED_LOST;
		case ARRIVED:
			break;
		}
		if (view.number == 0 && asked != LG_HELLO) {
			if (!deliver(link, &view))
				return LG_ASKED_LOST;
			/* Events do not prolong the wait. */
			if (lg_now() < until)
				continue;
			say(link, "lockgated does not answer: connection closed");
			give_up(link);
			return LG_ASKED_LOST;
		}
		if (view.number != link->number || !read_answer(&view, asked, answer)) {
			say(link, "an answer of lockgated is malformed: connection closed");
			give_up(link);
			return LG_ASKED_LOST;
		}
		if (asked == LG_HELLO)
			link->incarnation = view.incarnation;
		if (view.incarnation == link->incarnation && answer->status != LG_OTHER_INCARNATION)
			return LG_ASKED;
		say(link, "lockgated answers for another incarnation: connection closed");
		disconnect(link);
		return LG_ASKED_LOST;
	}
}

/* 1. number it, 2. send it, 3. wipe it, 4. wait for its answer. */
static enum lg_asked exchange(struct lg_link *link, struct lg_builder *request,
			      struct lg_answer *answer)
{
	int64_t until = lg_now() + LG_ANSWER_MS;
	uint16_t asked = (uint16_t)(request->bytes[6] << 8 | request->bytes[7]);
	bool sent;

	if (link->greeting && until > link->greeted_by)
		until = link->greeted_by;
	if (++link->number == 0)
		link->number = 1;
	lg_finish(request, link->number, link->incarnation);
	sent = send_within(link, request, until);
	explicit_bzero(request->bytes, request->used);
	return sent ? answer_within(link, asked, answer, until) : LG_ASKED_LOST;
}

static bool open_socket(struct lg_link *link)
{
	struct epoll_event watch = { .events = EPOLLIN };
	struct ucred peer;
	socklen_t length = sizeof(peer);
	int opened = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (opened < 0) {
		say(link, "no socket: error %d", errno);
		return false;
	}
	if (connect(opened, (struct sockaddr *)&link->address, sizeof(link->address)) != 0) {
		say(link, "lockgated is not there: %s: %s", link->address.sun_path,
		    errno == ENOENT	  ? "no such socket" :
		    errno == ECONNREFUSED ? "nobody listens" :
		    errno == EACCES	  ? "not allowed" :
		    errno == EAGAIN	  ? "it accepts no connections" :
		    errno == EPROTOTYPE	  ? "not a SOCK_SEQPACKET socket" :
					    "connecting failed");
		close(opened);
		return false;
	}
	if (getsockopt(opened, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
	    peer.uid != link->peer) {
		say(link, "%s is not served by user %u: refused", link->address.sun_path,
		    (unsigned)link->peer);
		close(opened);
		link->not_before = lg_now() + LG_RETRY_MS;
		return false;
	}
	if (epoll_ctl(link->watched, EPOLL_CTL_ADD, opened, &watch) != 0) {
		close(opened);
		return false;
	}
	link->socket = opened;
	return true;
}

static bool greet(struct lg_link *link)
{
	struct lg_builder hello;
	struct lg_answer answer;

	link->incarnation = 0;
	lg_link_begin(link, &hello, LG_HELLO);
	lg_put(&hello, LG_CHARON_ID, link->charon_id, sizeof(link->charon_id));
	lg_put(&hello, LG_CHARON, link->charon, strlen(link->charon));
	lg_put(&hello, LG_PLUGIN, link->plugin, strlen(link->plugin));
	if (exchange(link, &hello, &answer) != LG_ASKED)
		return false;
	if (answer.status != LG_DONE || link->incarnation == 0) {
		say(link, "lockgated does not serve this charon: status %u%s%s", answer.status,
		    answer.text[0] ? ": " : "", answer.text);
		give_up(link);
		return false;
	}
	if (!link->calls.connected(link->calls.owner, link->incarnation)) {
		give_up(link);
		return false;
	}
	return link->socket >= 0;
}

bool lg_link_up(struct lg_link *link)
{
	bool up;

	if (link->socket >= 0)
		return true;
	if (link->greeting || lg_now() < link->not_before || !open_socket(link))
		return false;
	link->greeting = true;
	link->greeted_by = lg_now() + LG_GREETING_MS;
	up = greet(link);
	link->greeting = false;
	if (up)
		say(link, "connected to lockgated, incarnation %016llx",
		    (unsigned long long)link->incarnation);
	return up;
}

void lg_link_extend(struct lg_link *link, int64_t more)
{
	link->greeted_by += more;
}

uint64_t lg_link_incarnation(const struct lg_link *link)
{
	return link->incarnation;
}

void lg_link_begin(struct lg_link *link, struct lg_builder *request, enum lg_kind kind)
{
	lg_begin(request, link->sent, LG_MAX_MESSAGE, kind);
}

enum lg_asked lg_link_ask(struct lg_link *link, struct lg_builder *request,
			  struct lg_answer *answer)
{
	memset(answer, 0, sizeof(*answer));
	if (request->failed || link->socket < 0) {
		explicit_bzero(request->bytes, request->used);
		return LG_ASKED_DOWN;
	}
	return exchange(link, request, answer);
}

/* Delivers what is there; an answer that nobody waits for closes the connection. */
static void drain(struct lg_link *link)
{
	struct lg_view view;

	/* Requests get their turn under a flood of events. */
	for (int i = 0; i < EVENTS_AT_ONCE; i++) {
		if (link->socket < 0 || arrive(link, &view) != ARRIVED)
			return;
		if (view.number == 0) {
			deliver(link, &view);
			continue;
		}
		say(link, "lockgated answers what nobody asked: connection closed");
		give_up(link);
	}
}

static void *attend(void *given)
{
	struct lg_link *link = given;
	struct epoll_event ready;
	int64_t next = lg_now();

	lg_link_lock(link);
	while (!link->stopping) {
		int64_t left = next - lg_now();

		if (left <= 0) {
			lg_link_up(link);
			link->calls.tick(link->calls.owner);
			next = lg_now() + LG_RETRY_MS;
			left = LG_RETRY_MS;
		}
		lg_link_unlock(link);
		epoll_wait(link->watched, &ready, 1, (int)left);
		lg_link_lock(link);
		drain(link);
	}
	lg_link_unlock(link);
	return NULL;
}

struct lg_link *lg_link_create(const struct lg_link_settings *settings,
			       const struct lg_link_calls *calls)
{
	struct epoll_event watch = { .events = EPOLLIN };
	struct lg_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->calls = *calls;
	link->peer = settings->peer;
	link->socket = -1;
	link->address.sun_family = AF_UNIX;
	snprintf(link->charon, sizeof(link->charon), "%s", settings->charon);
	snprintf(link->plugin, sizeof(link->plugin), "%s", settings->plugin);
	pthread_mutex_init(&link->lock, NULL);
	link->watched = epoll_create1(EPOLL_CLOEXEC);
	link->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	link->sent = lg_secret_map(BUFFER_BYTES, &link->unlocked);
	link->received = lg_secret_map(BUFFER_BYTES, &link->unlocked);
	if (strlen(settings->path) >= sizeof(link->address.sun_path) || !link->sent ||
	    !link->received || link->watched < 0 || link->wake < 0 ||
	    getrandom(link->charon_id, sizeof(link->charon_id), 0) != LG_CHARON_ID_BYTES ||
	    epoll_ctl(link->watched, EPOLL_CTL_ADD, link->wake, &watch) != 0) {
		lg_link_destroy(link);
		return NULL;
	}
	memcpy(link->address.sun_path, settings->path, strlen(settings->path) + 1);
	return link;
}

bool lg_link_start(struct lg_link *link)
{
	sigset_t all, before;

	if (link->unlocked)
		lg_link_log(link, "keys pass through memory that can be swapped out: locking failed "
				  "(raise LimitMEMLOCK of charon)");
	/* charon takes its signals in its own thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	link->running = pthread_create(&link->thread, NULL, attend, link) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return link->running;
}

void lg_link_destroy(struct lg_link *link)
{
	if (!link)
		return;
	if (link->running) {
		uint64_t one = 1;
		ssize_t written;

		lg_link_lock(link);
		link->stopping = true;
		lg_link_unlock(link);
		written = write(link->wake, &one, sizeof(one));
		(void)written;
		pthread_join(link->thread, NULL);
	}
	if (link->received)
		disconnect(link);
	lg_secret_unmap(link->sent, BUFFER_BYTES);
	lg_secret_unmap(link->received, BUFFER_BYTES);
	if (link->wake >= 0)
		close(link->wake);
	if (link->watched >= 0)
		close(link->watched);
	pthread_mutex_destroy(&link->lock);
	free(link);
}

void lg_link_lock(struct lg_link *link)
{
	pthread_mutex_lock(&link->lock);
}

void lg_link_unlock(struct lg_link *link)
{
	pthread_mutex_unlock(&link->lock);
}
