/* SPDX-License-Identifier: MIT */
/*
 * A session: charon's calls, carried out over the link and kept in the ledger.
 *
 * The ledger is the truth about what charon has: it holds what lockgated accepted and charon has
 * not deleted. On every connection the session repeats the ledger, then says LG_REPEATED, and
 * lockgated drops what it has beyond that. So a lost answer needs no care: what charon was told has
 * failed is not in the ledger and does not survive the next connection.
 *
 * A new incarnation of lockgated has no SAs. Their keys are wiped here before anything else is
 * said to it, and no SA is ever repeated to it: sequence numbers would start again under a used
 * key. It gets the policies, and charon gets a request to renew each SA, then, if that did not
 * help, the news that the SA ended.
 */
#ifndef LOCKGATE_SESSION_H_
#define LOCKGATE_SESSION_H_

#include "link.h"

/* Time that charon has to renew an SA that was lost, before it is told that the SA ended. */
#define LG_RENEW_MS 5000
/* Time between two such messages after that, while charon keeps the SA. */
#define LG_REMIND_MS 10000

/* Time after which charon knows a trap that it has put: only then it finds it for an acquire. */
#define LG_SETTLE_MS 200

enum lg_result {
	LG_RESULT_DONE = 0,
	/* No connection, or it broke: lockgated may or may not have done it. */
	LG_RESULT_DOWN,
	/* lockgated refused; the reason was logged. */
	LG_RESULT_REFUSED,
	LG_RESULT_UNKNOWN,
};

struct lg_session;

struct lg_session_calls {
	void *owner;
	/* Called with the session locked, in any thread: must not block nor call the session. */
	void (*event)(void *owner, const struct lg_event *event);
	void (*log)(void *owner, const char *text);
};

struct lg_session *lg_session_create(const struct lg_link_settings *settings,
				     const struct lg_session_calls *calls);
void lg_session_destroy(struct lg_session *session);

struct lg_sa_id {
	struct lg_address source;
	struct lg_address destination;
	uint32_t spi;
};

struct lg_keys {
	const uint8_t *key;
	size_t key_length;
	const uint8_t *integrity;
	size_t integrity_length;
};

struct lg_move {
	struct lg_address source;
	struct lg_address destination;
	bool encapsulation;
	/* 0: it stays. */
	uint32_t reqid;
};

struct lg_use {
	uint64_t packets;
	uint64_t bytes;
	/* Seconds since the last packet; UINT64_MAX: none yet. */
	uint64_t idle;
};

enum lg_result lg_session_spi(struct lg_session *session, const struct lg_address *source,
			      const struct lg_address *destination, uint32_t *spi);
/* `fields` is a message begun as LG_ADD_SA with everything but the keys and REPEAT. */
enum lg_result lg_session_add_sa(struct lg_session *session, const struct lg_sa_id *id,
				 enum lg_direction direction, const struct lg_builder *fields,
				 const struct lg_keys *keys);
enum lg_result lg_session_update_sa(struct lg_session *session, const struct lg_sa_id *id,
				    const struct lg_move *move);
enum lg_result lg_session_query_sa(struct lg_session *session, const struct lg_sa_id *id,
				   struct lg_use *use);
enum lg_result lg_session_delete_sa(struct lg_session *session, const struct lg_sa_id *id);
enum lg_result lg_session_flush_sas(struct lg_session *session);
/*
 * Tells the names that an inbound SA has in charon's configuration. They may hold any bytes. Names
 * that do not arrive are told with the next connection.
 */
enum lg_result lg_session_name_sa(struct lg_session *session, const struct lg_sa_id *id,
				  const char *ike, const char *child);

/*
 * `fields` is a message begun as LG_ADD_POLICY with everything but REPEAT. A policy without an SPI
 * is a trap or a shunt: it is kept and answered as done when lockgated is not there, because charon
 * would not ask again, and installed as soon as lockgated is.
 */
enum lg_result lg_session_add_policy(struct lg_session *session, const struct lg_builder *fields);
enum lg_result lg_session_delete_policy(struct lg_session *session,
					const struct lg_builder *fields);
/* `fields` is a message begun as LG_QUERY_POLICY. */
enum lg_result lg_session_query_policy(struct lg_session *session,
				       const struct lg_builder *fields, struct lg_use *use);
enum lg_result lg_session_flush_policies(struct lg_session *session);

/* Entries of the ledger, for tests. */
size_t lg_session_count(struct lg_session *session, int kind);

#endif /* LOCKGATE_SESSION_H_ */
