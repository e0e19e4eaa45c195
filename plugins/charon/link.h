/* SPDX-License-Identifier: MIT */
/*
 * The link: a connection to lockgated that carries one request at a time and comes back by itself.
 *
 * One lock covers the link and what its owner keeps beside it. The owner locks, asks, unlocks.
 * While it waits for its answer it also delivers the events that arrive; between requests a thread
 * of the link does. The thread tries to connect again once a second, and so does the next request.
 *
 * A request has a time limit for sending and answer together. After it, and after anything that
 * protocol.h does not allow, the link closes the connection, and for a second every request fails
 * at once, so that a daemon that hangs does not hold up charon's threads one after the other.
 */
#ifndef LOCKGATE_LINK_H_
#define LOCKGATE_LINK_H_

#include <sys/types.h>

#include "message.h"

/* Time limit of a request. */
#define LG_ANSWER_MS 2000
/* Time between two attempts to connect, and between two ticks; tests take less. */
#ifndef LG_RETRY_MS
#define LG_RETRY_MS 1000
#endif
/* Time limit of connecting, with what the owner resumes then: more, if that is much. */
#define LG_GREETING_MS 30000

struct lg_event {
	enum lg_kind kind;
	/* LG_ACQUIRE */
	uint32_t reqid;
	struct lg_selector source;
	struct lg_selector destination;
	/* It is told so much later: charon may be putting the trap or the child. */
	uint32_t delay_ms;
	/* LG_EXPIRE and LG_MAPPING: the link reports the handle, the session also the SA's names. */
	uint64_t handle;
	uint32_t spi;
	struct lg_address host;
	/* LG_EXPIRE: it ended, where false says that it should be renewed */
	bool hard;
	/* LG_MAPPING */
	struct lg_address new_source;
};

struct lg_link_calls {
	void *owner;
	/* An event came. Called with the lock held; must not block. */
	void (*event)(void *owner, const struct lg_event *event);
	/* A connection was made to this incarnation; false closes it. Called with the lock held. */
	bool (*connected)(void *owner, uint64_t incarnation);
	/* Called about once a second by the link's thread, with the lock held. */
	void (*tick)(void *owner);
	void (*log)(void *owner, const char *text);
};

struct lg_link_settings {
	const char *path;
	/* The user that the peer's process must have. */
	uid_t peer;
	const char *charon;
	const char *plugin;
};

enum lg_asked {
	LG_ASKED = 0,
	/* Nothing was sent. */
	LG_ASKED_DOWN,
	/* The request went out, or a part of the resume did, and no answer came. */
	LG_ASKED_LOST,
};

struct lg_answer {
	uint16_t status;
	uint32_t spi;
	uint64_t handle;
	/* Encoded handles, none of them 0; valid until the next request. */
	const uint8_t *handles;
	size_t handle_count;
	uint64_t use[3];
	char text[513];
};

struct lg_link;

struct lg_link *lg_link_create(const struct lg_link_settings *settings,
			       const struct lg_link_calls *calls);
/* Starts the thread; false if the system refuses one. */
bool lg_link_start(struct lg_link *link);
/* Ends the thread and the connection. The lock must be free. */
void lg_link_destroy(struct lg_link *link);

void lg_link_lock(struct lg_link *link);
void lg_link_unlock(struct lg_link *link);

/* All that follow need the lock. */

/* Connects if there is no connection; false if there is none after that. */
bool lg_link_up(struct lg_link *link);
/* Gives the owner so many more milliseconds to resume what it has. */
void lg_link_extend(struct lg_link *link, int64_t more);
/* The incarnation of this connection; 0 without one. */
uint64_t lg_link_incarnation(const struct lg_link *link);
/* The buffer for the next request, in locked memory; it is wiped when it was sent. */
void lg_link_begin(struct lg_link *link, struct lg_builder *request, enum lg_kind kind);
/* Sends the request and waits. An answer that lacks what protocol.h promises closes the
 * connection. */
enum lg_asked lg_link_ask(struct lg_link *link, struct lg_builder *request,
			  struct lg_answer *answer);
/* Closes the connection, because an answer does not fit what the owner knows. */
void lg_link_reject(struct lg_link *link, const char *why);
void lg_link_log(struct lg_link *link, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Milliseconds of the monotonic clock. */
int64_t lg_now(void);

#endif /* LOCKGATE_LINK_H_ */
