/* SPDX-License-Identifier: MIT */
/*
 * A session: charon's calls, carried out over the link and kept in the ledger.
 *
 * The ledger is the truth about what charon has: it holds what lockgated accepted and charon has
 * not deleted. Each new connection resumes: the session names all handles of the ledger, delivers
 * moves and names that lockgated has not received, puts the policies again, and says LG_RESUMED.
 * Then lockgated drops what it has beyond that. So a lost answer needs no care: what charon was
 * told has failed is not in the ledger and does not survive the next connection.
 *
 * lockgated answers with the handles that it lacks. A new start of lockgated lacks all of them,
 * unless it restored some. For each SA that lockgated lacks, the session reports both SAs of the
 * child to charon as hard-expired, deletes the other SA in lockgated, and forgets both. Then charon
 * makes a new child. No key is kept for a resume, and none is sent twice.
 *
 * A call waits while a connection is made and resumed: at most LG_GREETING_MS and 5 ms for each
 * entry of the ledger in all, and no call waits longer than for the rest of that.
 */
#ifndef LOCKGATE_SESSION_H_
#define LOCKGATE_SESSION_H_

#include "link.h"

/* Time after which a refused trap or shunt is put again, and the end of an SA is reported again
 * that charon has not deleted. */
#define LG_REMIND_MS 10000

/* Time after which charon knows a trap, or a child whose policies it is putting: only then it finds
 * them for an acquire or an expiry. */
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
/* `fields` is a message begun as LG_ADD_SA with everything but the keys. */
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
